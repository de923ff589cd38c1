"""What happens to a deep-learning model between the framework that trains it and the place where it runs."""

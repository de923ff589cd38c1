import tensorflow as tf

DISTRIBUTION = "tensorflow"


def run(path, inputs, _options):
    function = tf.saved_model.load(str(path)).signatures["serving_default"]
    (output,) = function(tf.constant(inputs)).values()
    return output.numpy()

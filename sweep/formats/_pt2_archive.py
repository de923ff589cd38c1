"""Reading a .pt2 archive without what PyTorch would run in it.

`torch.export.load` unpickles example inputs and odd weights, evaluates the text of symbolic sizes, imports modules and looks operators up
by whatever names the program has, and loads compiled code. Here a program is made of PyTorch's own operators on tensors; names and
expressions are checked against what its exporter writes; and the loader gets a new archive, with raw weights and nothing else.
"""

import io
import json
import re
import zipfile

from sweep.formats import _files

MODEL = "models/model.json"
_CONFIGURATIONS = {"weights": "data/weights/model_weights_config.json", "constants": "data/constants/model_constants_config.json"}
_SAMPLES = "data/sample_inputs/model.pt"
_KEPT = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")

_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims)\.\w+\.\w+|torch\.ops\.higher_order\.(cond|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_|pow)"
    r"|math\.(ceil|floor|trunc|sqrt)|torch\.sym_(float|int|max|min|not|ite|sum)|torch\._sym_sqrt"
)
_REACHES_OUT = re.compile(r"torch\.ops\.aten\.(from_file|save|_print|warn)\b.*")
_NAME = re.compile(r"[\w.]*")
_QUOTED = re.compile(r"'((s|u|zf|zuf)\d+|[\d.e+-]+)'")  # a symbol, or a number of many digits
_WORDS = {
    "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "integer", "positive", "nonnegative", "negative", "real", "precision",
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift", "RShift",
    "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt",
    "RoundToInt", "RoundDecimal", "ToFloat", "Identity", "Max", "Min", "And", "Or", "Not", "True", "False",
    "Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan",
}
_EXPRESSION = re.compile(r"[\w\s+\-*/(),.<>=]*")
_TREES = ("builtins.tuple", "builtins.list", "builtins.dict", None)


def checked(path):
    """A new archive in memory, for `torch.export.load`. Raises ValueError that names the file: damaged, of an older PyTorch, compiled, or
    with anything in it but tensors and PyTorch's operators on them."""
    members = _members(path)
    program = _parsed(path, members, MODEL)
    try:
        _check(path, program)
        _reduce(path, program)
        configurations = {kind: _payload(path, members, name) for kind, name in _CONFIGURATIONS.items()}
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError("{}: {} is not what PyTorch writes: {}".format(path, MODEL, _files.one_line(error))) from error
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name in _KEPT:
            if name in members:
                archive.writestr("model/" + name, members[name])
        archive.writestr("model/" + MODEL, json.dumps(program))
        archive.writestr("model/" + _SAMPLES, b"")
        for kind, name in _CONFIGURATIONS.items():
            archive.writestr("model/" + name, members[name])
            for file in sorted(configurations[kind]):
                archive.writestr("model/" + file, members[file])
    written.seek(0)
    return written


def _members(path):
    """Bytes by name within the archive's one folder."""
    members = {name.partition("/")[2]: content for name, content in _files.read_members(path, lambda _name: True).items()}
    if any(name.startswith("data/aotinductor/") for name in members):
        raise ValueError("{} holds compiled code; export the program itself".format(path))
    if MODEL not in members:
        raise ValueError("{} is of an older PyTorch, or no program is in it; write it with torch.export.save".format(path))
    others = sorted(name for name in members if name.startswith("models/") and name != MODEL)
    if others:
        raise ValueError("{} holds several programs: {}".format(path, ", ".join([MODEL] + others)))
    return members


def _parsed(path, members, name):
    if name not in members:
        raise ValueError("{} lacks {}".format(path, name))
    try:
        return json.loads(members[name].decode())
    except ValueError as error:
        raise ValueError("{}: {}: {}".format(path, name, error)) from error


def _check(path, program):
    """Every name, operator and expression of a program."""
    queue = [("", program)]
    while queue:
        key, value = queue.pop()
        if isinstance(value, dict):
            if key in ("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values", "range_constraints"):
                queue.extend(("name", name) for name in value)
            queue.extend((inner, each) for inner, each in value.items() if inner != "metadata")
        elif isinstance(value, list):
            queue.extend((key, each) for each in value)
        elif isinstance(value, str):
            _check_text(path, key, value)


def _check_text(path, key, text):
    if key in ("target", "as_operator") and (not _OPERATOR.fullmatch(text) or _REACHES_OUT.fullmatch(text)):
        raise ValueError("{} calls {!r}, which is none of the operators that a model is made of here".format(path, text[:80]))
    if key == "expr_str":
        rest = _QUOTED.sub("0", text)
        if not _EXPRESSION.fullmatch(rest) or "**" in rest or set(re.findall(r"[A-Za-z_]\w*", rest)) - _WORDS:
            raise ValueError("{} has a size {!r}, which is no expression of sizes".format(path, text[:80]))
    if (key in ("name", "forward_arg_names") or key.endswith("_name")) and not _NAME.fullmatch(text):
        raise ValueError("{} has a name that is none: {!r}".format(path, text[:80]))


def _reduce(path, program):
    """Leave out what only debugging and unflattening need, and what would be run: metadata, calls of inner modules, guards as code."""
    queue = [program["graph_module"]]
    while queue:
        value = queue.pop()
        if isinstance(value, dict):
            if "metadata" in value:
                value["metadata"] = {}
            queue.extend(value.values())
        elif isinstance(value, list):
            queue.extend(value)
    module = program["graph_module"]
    module["treespec_namedtuple_fields"] = {}
    module["module_call_graph"] = [entry for entry in module["module_call_graph"] if entry["fqn"] == ""]
    program["guards_code"] = []
    for entry in module["module_call_graph"]:
        for specification in (entry["signature"]["in_spec"], entry["signature"]["out_spec"]):
            _check_tree(path, json.loads(specification))


def _check_tree(path, tree):
    """How inputs and outputs are nested: tuples, lists and dictionaries alone, with plain keys."""
    queue = [tree]
    while queue:
        value = queue.pop()
        if isinstance(value, list):
            queue.extend(value)
        elif isinstance(value, dict):
            if value["type"] not in _TREES or not re.fullmatch(r'[\w\s",\[\]]*', value["context"] or ""):
                raise ValueError("{} nests its inputs or outputs in {!r}".format(path, value["type"]))
            queue.extend(value["children_spec"])


def _payload(path, members, name):
    """Names of the members that hold the raw values of weights or constants."""
    folder, found = name.rpartition("/")[0], set()
    for weight, entry in _parsed(path, members, name)["config"].items():
        file = "{}/{}".format(folder, entry["path_name"])
        if not _NAME.fullmatch(weight):
            raise ValueError("{} has a name that is none: {!r}".format(path, weight[:80]))
        if entry["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", entry["path_name"]):
            raise ValueError("{}: {} is pickled, which may run code".format(path, weight[:80]))
        if file not in members:
            raise ValueError("{} lacks {}".format(path, file))
        found.add(file)
    return found

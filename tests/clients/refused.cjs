// Sends content that nobody wants, over HTTP/2 with Node: `refused.cjs BASE CA` reads lines `PATH BYTES`, and says the status of
// each, or what went wrong.
'use strict';
const http2 = require('node:http2');
const fs = require('node:fs');
const readline = require('node:readline');
const { Readable } = require('node:stream');

const [base, authority] = process.argv.slice(2);
const session = http2.connect(base, { ca: fs.readFileSync(authority) });
session.on('error', () => {}); // its streams tell

// Piece by piece: Node takes no answer while a stream holds more than 10 MB to be sent (maxSessionMemory).
function* content(size) {
    const piece = Buffer.alloc(65536, 'x');
    for (; size > 0; size -= piece.length) yield piece.subarray(0, size);
}

function ask(path, size) {
    return new Promise((resolve) => {
        const stream = session.request({ ':method': 'POST', ':path': path, 'content-length': size });
        let outcome = 'failed: no answer';
        stream.on('response', (fields) => { outcome = String(fields[':status']); });
        stream.on('error', (error) => { outcome = `failed: ${error}`; });
        stream.on('close', () => resolve(outcome));
        stream.resume();
        Readable.from(content(Number(size))).on('error', () => {}).pipe(stream);
    });
}

(async () => {
    for await (const line of readline.createInterface({ input: process.stdin })) {
        console.log(await ask(...line.split(' ')));
    }
    session.close();
})();

// gRPC with grpc-js: a server and clients in one process, as tests/clients/README.md says.
'use strict';
const grpc = require('@grpc/grpc-js');
const readline = require('node:readline');

const bytes = (message) => message; // so that no code has to be generated
const method = (name, requestStream, responseStream) => ({
    path: `/test.Calls/${name}`, requestStream, responseStream,
    requestSerialize: bytes, requestDeserialize: bytes, responseSerialize: bytes, responseDeserialize: bytes,
});
const definition = {
    unary: method('Unary', false, false),
    serverStream: method('ServerStream', false, true),
    clientStream: method('ClientStream', true, false),
    both: method('Both', true, true),
};
const Calls = grpc.makeGenericClientConstructor(definition, 'test.Calls');

let left = 0; // streams that were held and whose clients have gone

const handlers = {
    unary(call, answer) {
        const text = call.request.length < 100 ? call.request.toString() : '';
        if (text.startsWith('status ')) {
            const code = Number(text.slice(7));
            return answer({ code, details: `no: ${code} \u00fc` });
        }
        if (text === 'wait') return; // until its client has gone
        if (text === 'left') return answer(null, Buffer.from(String(left)));
        const trailers = new grpc.Metadata();
        for (const name of ['x-said', 'x-bytes-bin']) {
            for (const value of call.metadata.get(name)) trailers.add(name, value);
        }
        answer(null, call.request, trailers);
    },
    serverStream(call) {
        const [count, then] = call.request.toString().split(' ');
        for (let number = 0; number < Number(count); number++) call.write(Buffer.from(String(number)));
        if (!then) return call.end();
        if (then === 'hold') call.on('cancelled', () => { left++; });
    },
    clientStream(call, answer) {
        let sum = 0;
        call.on('data', (message) => { sum += message.length; });
        call.on('end', () => answer(null, Buffer.from(String(sum))));
    },
    both(call) {
        call.on('data', (message) => call.write(Buffer.from(message.toString().toUpperCase())));
        call.on('end', () => call.end());
    },
};

function check(what, isRight) {
    if (!isRight) throw new Error(what);
}

// The answer, the trailers and the status of a unary call.
function unary(client, request, metadata = new grpc.Metadata(), options = { deadline: Date.now() + 60000 }) {
    return new Promise((resolve) => {
        let outcome;
        const call = client.unary(Buffer.from(request), metadata, options, (error, answer) => { outcome = { error, answer }; });
        call.on('status', (status) => setImmediate(() => resolve({ ...outcome, status })));
    });
}

// The messages and the status of a stream.
function all(call, onMessage = () => {}) {
    return new Promise((resolve) => {
        const messages = [];
        call.on('data', (message) => { messages.push(message.toString()); onMessage(); });
        call.on('error', () => {}); // the status says it, too
        call.on('status', (status) => setImmediate(() => resolve({ messages: messages.join(' '), code: status.code })));
    });
}

async function calls(client) {
    const metadata = new grpc.Metadata();
    metadata.add('x-said', 'well');
    metadata.add('x-bytes-bin', Buffer.from([0, 255]));
    const said = await unary(client, 'hello', metadata);
    check('unary', said.answer?.toString() === 'hello');
    const trailers = said.status.metadata;
    check('metadata', trailers.get('x-said')[0] === 'well' && trailers.get('x-bytes-bin')[0].equals(Buffer.from([0, 255])));
    const large = Buffer.alloc((4 << 20) - 1024, 'x');
    check('a message of 4 MB', (await unary(client, large)).answer?.equals(large));
    for (let code = 1; code <= 16; code++) {
        const { status } = await unary(client, `status ${code}`);
        check(`status ${code}: ${status.code} ${status.details}`, status.code === code && status.details === `no: ${code} \u00fc`);
    }
    const stream = await all(client.serverStream(Buffer.from('5')));
    check('a stream of the server', stream.messages === '0 1 2 3 4' && stream.code === 0);
    const sum = await new Promise((resolve) => {
        const call = client.clientStream((error, answer) => resolve(answer?.toString()));
        for (const word of ['a', 'bc', 'def']) call.write(Buffer.from(word));
        call.end();
    });
    check('a stream of the client', sum === '6');
    const words = ['one', 'two', 'three'];
    const both = client.both();
    const next = () => { const word = words.shift(); if (word) both.write(Buffer.from(word)); else both.end(); };
    next();
    const answers = await all(both, next);
    check('streams both ways', answers.messages === 'ONE TWO THREE' && answers.code === 0);
}

const leftNow = async (client) => Number((await unary(client, 'left')).answer);

async function repeat(client, count) {
    let [deadlines, ofStreams, cancels] = [0, 0, 0];
    const before = await leftNow(client);
    const tally = (code, wanted) => { if (code !== wanted) console.error('ended with', code); return Number(code === wanted); };
    // A server that resets the stream at the same deadline (grpc-java does) may be faster than the timer here, and grpc-js does not
    // look at the clock then, as grpc-go does.
    const within = async (call) => {
        const deadline = Date.now() + 20;
        const code = await call({ deadline });
        const isLate = code === grpc.status.CANCELLED && Date.now() >= deadline;
        return tally(isLate ? grpc.status.DEADLINE_EXCEEDED : code, grpc.status.DEADLINE_EXCEEDED);
    };
    const none = new grpc.Metadata();
    for (let number = 0; number < count; number++) {
        deadlines += await within(async (soon) => (await unary(client, 'wait', none, soon)).status.code);
        ofStreams += await within(async (soon) => (await all(client.serverStream(Buffer.from('1 wait'), none, soon))).code);
        const held = client.serverStream(Buffer.from('1 hold'));
        cancels += tally((await all(held, () => held.cancel())).code, grpc.status.CANCELLED);
    }
    const until = Date.now() + 20000;
    while (await leftNow(client) < before + count && Date.now() < until);
    return `deadlines ${deadlines}, of streams ${ofStreams}, cancels ${cancels}, seen ${await leftNow(client) - before}`;
}

async function answer(line) {
    const [what, address, count] = line.split(' ');
    const client = new Calls(address, grpc.credentials.createInsecure());
    try {
        if (what === 'repeat') return await repeat(client, Number(count));
        await calls(client);
        return 'ok';
    } catch (error) {
        return `failed: ${error}`.replaceAll('\n', ' ');
    } finally {
        client.close();
    }
}

const server = new grpc.Server();
server.addService(definition, handlers);
server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), async (error, port) => {
    if (error) throw error;
    console.log(`port ${port}`);
    for await (const line of readline.createInterface({ input: process.stdin })) console.log(await answer(line));
    process.exit(0);
});

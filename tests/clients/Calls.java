import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.InsecureServerCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/** gRPC with grpc-java: a server and clients in one process, as tests/clients/README.md says. */
class Calls {
    /** Messages are bytes, so that no code has to be generated. */
    static final MethodDescriptor.Marshaller<byte[]> BYTES = new MethodDescriptor.Marshaller<byte[]>() {
        @Override
        public InputStream stream(byte[] message) {
            return new ByteArrayInputStream(message);
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    };

    static MethodDescriptor<byte[], byte[]> method(String name, MethodType type) {
        return MethodDescriptor.newBuilder(BYTES, BYTES).setType(type).setFullMethodName("test.Calls/" + name).build();
    }

    static final MethodDescriptor<byte[], byte[]> UNARY = method("Unary", MethodType.UNARY);
    static final MethodDescriptor<byte[], byte[]> SERVER_STREAM = method("ServerStream", MethodType.SERVER_STREAMING);
    static final MethodDescriptor<byte[], byte[]> CLIENT_STREAM = method("ClientStream", MethodType.CLIENT_STREAMING);
    static final MethodDescriptor<byte[], byte[]> BOTH = method("Both", MethodType.BIDI_STREAMING);

    static final Metadata.Key<String> SAID = Metadata.Key.of("x-said", Metadata.ASCII_STRING_MARSHALLER);
    static final Metadata.Key<byte[]> IN_BYTES = Metadata.Key.of("x-bytes-bin", Metadata.BINARY_BYTE_MARSHALLER);

    static byte[] bytes(Object text) {
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    // ----- The server -----

    /** Streams that were held and whose clients have gone. */
    static final AtomicInteger LEFT = new AtomicInteger();

    /** Sends metadata back as trailers. */
    static class Mirror implements ServerInterceptor {
        @Override
        public <Q, S> ServerCall.Listener<Q> interceptCall(
            ServerCall<Q, S> call, Metadata fields, ServerCallHandler<Q, S> next) {
            Metadata trailers = new Metadata();
            if (fields.containsKey(SAID)) {
                trailers.put(SAID, fields.get(SAID));
                trailers.put(IN_BYTES, fields.get(IN_BYTES));
            }
            return next.startCall(new io.grpc.ForwardingServerCall.SimpleForwardingServerCall<Q, S>(call) {
                @Override
                public void close(Status status, Metadata own) {
                    own.merge(trailers);
                    super.close(status, own);
                }
            }, fields);
        }
    }

    static void unary(byte[] request, StreamObserver<byte[]> answer) {
        String text = request.length < 100 ? text(request) : "";
        if (text.startsWith("status ")) {
            int code = Integer.parseInt(text.substring(7));
            Status status = Status.fromCodeValue(code).withDescription("no: " + code + " \u00fc");
            answer.onError(status.asRuntimeException());
            return;
        }
        if (text.equals("wait")) {
            ((ServerCallStreamObserver<byte[]>) answer).setOnCancelHandler(() -> { });
            return;
        }
        answer.onNext(text.equals("left") ? bytes(LEFT.get()) : request);
        answer.onCompleted();
    }

    static void serverStream(byte[] request, StreamObserver<byte[]> answer) {
        String[] words = text(request).split(" ");
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            answer.onNext(bytes(number));
        }
        if (words.length == 1) {
            answer.onCompleted();
            return;
        }
        ((ServerCallStreamObserver<byte[]>) answer).setOnCancelHandler(() -> {
            if (words[1].equals("hold")) {
                LEFT.incrementAndGet();
            }
        });
    }

    /** Takes messages, and does something at their end. */
    static StreamObserver<byte[]> taking(Consumer<byte[]> each, Runnable end) {
        return new StreamObserver<byte[]>() {
            @Override
            public void onNext(byte[] message) {
                each.accept(message);
            }

            @Override
            public void onError(Throwable error) { }

            @Override
            public void onCompleted() {
                end.run();
            }
        };
    }

    static StreamObserver<byte[]> clientStream(StreamObserver<byte[]> answer) {
        AtomicInteger sum = new AtomicInteger();
        return taking(message -> sum.addAndGet(message.length), () -> {
            answer.onNext(bytes(sum.get()));
            answer.onCompleted();
        });
    }

    static StreamObserver<byte[]> both(StreamObserver<byte[]> answer) {
        return taking(message -> answer.onNext(bytes(text(message).toUpperCase())), answer::onCompleted);
    }

    static Server serve() throws IOException {
        ServerServiceDefinition service = ServerServiceDefinition.builder("test.Calls")
            .addMethod(UNARY, ServerCalls.asyncUnaryCall(Calls::unary))
            .addMethod(SERVER_STREAM, ServerCalls.asyncServerStreamingCall(Calls::serverStream))
            .addMethod(CLIENT_STREAM, ServerCalls.asyncClientStreamingCall(Calls::clientStream))
            .addMethod(BOTH, ServerCalls.asyncBidiStreamingCall(Calls::both))
            .build();
        return io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder
            .forAddress(new InetSocketAddress("127.0.0.1", 0), InsecureServerCredentials.create())
            .addService(service).intercept(new Mirror()).build().start();
    }

    // ----- The client -----

    static void check(String what, boolean isRight) {
        if (!isRight) {
            throw new IllegalStateException(what);
        }
    }

    static CallOptions within(long ms) {
        return CallOptions.DEFAULT.withDeadlineAfter(ms, TimeUnit.MILLISECONDS);
    }

    static byte[] unary(Channel channel, byte[] request) {
        return ClientCalls.blockingUnaryCall(channel, UNARY, within(60_000), request);
    }

    /** What a stream brought, and how it ended. */
    static class Outcome implements ClientResponseObserver<byte[], byte[]> {
        final List<String> messages = new ArrayList<>();
        final CountDownLatch over = new CountDownLatch(1);
        Consumer<ClientCallStreamObserver<byte[]>> onMessage = call -> { };
        ClientCallStreamObserver<byte[]> call;
        Status status = Status.OK;

        @Override
        public void beforeStart(ClientCallStreamObserver<byte[]> begun) {
            call = begun;
        }

        @Override
        public void onNext(byte[] message) {
            messages.add(text(message));
            onMessage.accept(call);
        }

        @Override
        public void onError(Throwable error) {
            status = Status.fromThrowable(error);
            over.countDown();
        }

        @Override
        public void onCompleted() {
            over.countDown();
        }

        String end() throws InterruptedException {
            check("it ends", over.await(60, TimeUnit.SECONDS));
            return String.join(" ", messages) + " " + status.getCode();
        }
    }

    static void calls(Channel channel) throws Exception {
        Metadata fields = new Metadata();
        fields.put(SAID, "well");
        fields.put(IN_BYTES, new byte[] {0, -1});
        AtomicReference<Metadata> trailers = new AtomicReference<>();
        Channel saying = io.grpc.ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(fields),
            MetadataUtils.newCaptureMetadataInterceptor(new AtomicReference<>(), trailers));
        check("unary", text(unary(saying, bytes("hello"))).equals("hello"));
        boolean isBack = "well".equals(trailers.get().get(SAID))
            && Arrays.equals(new byte[] {0, -1}, trailers.get().get(IN_BYTES));
        check("metadata", isBack);
        byte[] large = new byte[(4 << 20) - 1024];
        check("a message of 4 MB", Arrays.equals(unary(channel, large), large));
        for (int code = 1; code <= 16; code++) {
            Status status = Status.OK;
            try {
                unary(channel, bytes("status " + code));
            } catch (StatusRuntimeException error) {
                status = error.getStatus();
            }
            boolean isRight = status.getCode().value() == code && ("no: " + code + " \u00fc").equals(status.getDescription());
            check("status " + code + ": " + status, isRight);
        }
        Outcome stream = new Outcome();
        ClientCalls.asyncServerStreamingCall(channel.newCall(SERVER_STREAM, within(60_000)), bytes("5"), stream);
        check("a stream of the server", stream.end().equals("0 1 2 3 4 OK"));
        Outcome sum = new Outcome();
        StreamObserver<byte[]> sending = ClientCalls.asyncClientStreamingCall(channel.newCall(CLIENT_STREAM, within(60_000)), sum);
        for (String word : new String[] {"a", "bc", "def"}) {
            sending.onNext(bytes(word));
        }
        sending.onCompleted();
        check("a stream of the client", sum.end().equals("6 OK"));
        Outcome answers = new Outcome();
        List<String> words = new ArrayList<>(List.of("two", "three"));
        answers.onMessage = call -> {
            if (words.isEmpty()) {
                call.onCompleted();
            } else {
                call.onNext(bytes(words.remove(0)));
            }
        };
        ClientCalls.asyncBidiStreamingCall(channel.newCall(BOTH, within(60_000)), answers).onNext(bytes("one"));
        check("streams both ways", answers.end().equals("ONE TWO THREE OK"));
    }

    static int left(Channel channel) {
        return Integer.parseInt(text(unary(channel, bytes("left"))));
    }

    static int tally(Status.Code code, Status.Code wanted) {
        if (code != wanted) {
            System.err.println("ended with " + code);
        }
        return code == wanted ? 1 : 0;
    }

    static String repeat(Channel channel, int count) throws Exception {
        int deadlines = 0;
        int ofStreams = 0;
        int cancels = 0;
        int before = left(channel);
        for (int number = 0; number < count; number++) {
            Status.Code code = Status.Code.OK;
            try {
                ClientCalls.blockingUnaryCall(channel, UNARY, within(20), bytes("wait"));
            } catch (StatusRuntimeException error) {
                code = error.getStatus().getCode();
            }
            deadlines += tally(code, Status.Code.DEADLINE_EXCEEDED);
            Outcome stream = new Outcome();
            ClientCalls.asyncServerStreamingCall(channel.newCall(SERVER_STREAM, within(20)), bytes("1 wait"), stream);
            stream.end();
            ofStreams += tally(stream.status.getCode(), Status.Code.DEADLINE_EXCEEDED);
            Outcome held = new Outcome();
            CountDownLatch first = new CountDownLatch(1);
            held.onMessage = call -> first.countDown();
            ClientCalls.asyncServerStreamingCall(channel.newCall(SERVER_STREAM, within(60_000)), bytes("1 hold"), held);
            check("its first message", first.await(60, TimeUnit.SECONDS));
            held.call.cancel("enough", null);
            held.end();
            cancels += tally(held.status.getCode(), Status.Code.CANCELLED);
        }
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (left(channel) < before + count && System.nanoTime() < until) { }
        int seen = left(channel) - before;
        return "deadlines " + deadlines + ", of streams " + ofStreams + ", cancels " + cancels + ", seen " + seen;
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println("port " + serve().getPort());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            ManagedChannel channel = Grpc.newChannelBuilder(words[1], InsecureChannelCredentials.create()).build();
            try {
                if (words[0].equals("repeat")) {
                    System.out.println(repeat(channel, Integer.parseInt(words[2])));
                } else {
                    calls(channel);
                    System.out.println("ok");
                }
            } catch (Exception error) {
                System.out.println(("failed: " + error).replace('\n', ' '));
            } finally {
                channel.shutdownNow();
            }
        }
        System.exit(0); // its threads would wait for more
    }
}

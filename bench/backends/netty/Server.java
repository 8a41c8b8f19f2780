import static io.netty.handler.codec.http.HttpHeaderNames.CONNECTION;
import static io.netty.handler.codec.http.HttpHeaderNames.CONTENT_LENGTH;
import static io.netty.handler.codec.http.HttpHeaderNames.CONTENT_TYPE;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.ChannelPipeline;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpObject;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpServerExpectContinueHandler;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** A fast service on each of several ports: the same answer to every request, at once. */
public final class Server {
    public static void main(String[] arguments) throws Exception {
        byte[] body = {};
        int threads = 1;
        SslContext tls = null;
        String host = "127.0.0.1";
        List<Integer> ports = new ArrayList<>();
        for (String argument : Files.readAllLines(Path.of(arguments[0]))) {
            String[] pair = argument.split("=", 2);
            switch (pair[0]) {
                case "body" -> body = Files.readAllBytes(Path.of(pair[1]));
                case "threads" -> threads = Integer.parseInt(pair[1]);
                case "host" -> host = pair[1];
                case "port" -> ports.add(Integer.parseInt(pair[1]));
                case "tls" -> {
                    String[] files = pair[1].split(",");
                    tls = SslContextBuilder.forServer(new File(files[0]), new File(files[1])).build();
                }
                default -> throw new IllegalArgumentException(argument);
            }
        }
        EventLoopGroup loops = new NioEventLoopGroup(threads);
        ServerBootstrap server = new ServerBootstrap()
                .group(loops)
                .channel(NioServerSocketChannel.class)
                .option(ChannelOption.SO_BACKLOG, 65_535)
                .childOption(ChannelOption.TCP_NODELAY, true)
                .childHandler(new Pipeline(body, tls));
        for (int port : ports) {
            server.bind(host, port).sync();
        }
    }

    private static final class Pipeline extends ChannelInitializer<SocketChannel> {
        private final byte[] body;
        private final SslContext tls;

        Pipeline(byte[] body, SslContext tls) {
            this.body = body;
            this.tls = tls;
        }

        @Override
        protected void initChannel(SocketChannel channel) {
            ChannelPipeline pipeline = channel.pipeline();
            if (tls != null) {
                pipeline.addLast(tls.newHandler(channel.alloc()));
            }
            pipeline.addLast(new HttpServerCodec(), new HttpServerExpectContinueHandler(), new Answer(body));
        }
    }

    private static final class Answer extends SimpleChannelInboundHandler<HttpObject> {
        private final byte[] body;
        private boolean keepAlive;

        Answer(byte[] body) {
            this.body = body;
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, HttpObject part) {
            if (part instanceof HttpRequest request) {
                keepAlive = HttpUtil.isKeepAlive(request);
            }
            // The answer waits for the whole request: its body may be large.
            if (!(part instanceof LastHttpContent)) {
                return;
            }
            FullHttpResponse response = new DefaultFullHttpResponse(
                    HttpVersion.HTTP_1_1, HttpResponseStatus.OK, Unpooled.wrappedBuffer(body));
            response.headers().set(CONTENT_TYPE, "text/plain").setInt(CONTENT_LENGTH, body.length);
            if (!keepAlive) {
                response.headers().set(CONNECTION, "close");
            }
            ChannelFuture written = context.write(response);
            if (!keepAlive) {
                written.addListener(ChannelFutureListener.CLOSE);
            }
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            context.close();
        }
    }
}

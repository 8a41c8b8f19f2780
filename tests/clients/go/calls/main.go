// gRPC with grpc-go: a server and clients in one process, as tests/clients/README.md says.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Messages are bytes, so that no code has to be generated.
type raw struct{}

func (raw) Marshal(message interface{}) ([]byte, error) { return *message.(*[]byte), nil }
func (raw) Unmarshal(data []byte, message interface{}) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "raw" }

// Streams that were held and whose clients have gone.
var left int64

func unary(_ interface{}, ctx context.Context, decode func(interface{}) error, _ grpc.UnaryServerInterceptor) (interface{}, error) {
	var request []byte
	if err := decode(&request); err != nil {
		return nil, err
	}
	var code int
	fields, _ := metadata.FromIncomingContext(ctx)
	switch count, _ := fmt.Sscanf(string(request), "status %d", &code); {
	case count == 1:
		return nil, status.Error(codes.Code(code), fmt.Sprintf("no: %d \u00fc", code))
	case string(request) == "wait":
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case string(request) == "left":
		answer := []byte(fmt.Sprint(atomic.LoadInt64(&left)))
		return &answer, nil
	}
	trailers := metadata.MD{"x-bytes-bin": fields.Get("x-bytes-bin"), "x-said": fields.Get("x-said")}
	if err := grpc.SetTrailer(ctx, trailers); err != nil {
		return nil, err
	}
	return &request, nil
}

func serverStream(_ interface{}, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	var count int
	var then string
	fmt.Sscan(string(request), &count, &then)
	for number := 0; number < count; number++ {
		message := []byte(fmt.Sprint(number))
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
	if then != "" {
		<-stream.Context().Done()
	}
	if then == "hold" {
		atomic.AddInt64(&left, 1)
	}
	return status.FromContextError(stream.Context().Err()).Err()
}

func clientStream(_ interface{}, stream grpc.ServerStream) error {
	sum := 0
	for {
		var request []byte
		if err := stream.RecvMsg(&request); err == io.EOF {
			answer := []byte(fmt.Sprint(sum))
			return stream.SendMsg(&answer)
		} else if err != nil {
			return err
		}
		sum += len(request)
	}
}

func both(_ interface{}, stream grpc.ServerStream) error {
	for {
		var request []byte
		if err := stream.RecvMsg(&request); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		answer := bytes.ToUpper(request)
		if err := stream.SendMsg(&answer); err != nil {
			return err
		}
	}
}

var service = grpc.ServiceDesc{
	ServiceName: "test.Calls",
	HandlerType: (*interface{})(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "Unary", Handler: unary}},
	Streams: []grpc.StreamDesc{
		{StreamName: "ServerStream", Handler: serverStream, ServerStreams: true},
		{StreamName: "ClientStream", Handler: clientStream, ClientStreams: true},
		{StreamName: "Both", Handler: both, ServerStreams: true, ClientStreams: true},
	},
}

type client struct{ connection *grpc.ClientConn }

func (c client) unary(ctx context.Context, request []byte, options ...grpc.CallOption) ([]byte, error) {
	var answer []byte
	err := c.connection.Invoke(ctx, "/test.Calls/Unary", &request, &answer, options...)
	return answer, err
}

func (c client) stream(ctx context.Context, name string, messages ...string) (grpc.ClientStream, error) {
	description := grpc.StreamDesc{ServerStreams: name != "ClientStream", ClientStreams: name != "ServerStream"}
	stream, err := c.connection.NewStream(ctx, &description, "/test.Calls/"+name)
	for _, message := range messages {
		request := []byte(message)
		if err == nil {
			err = stream.SendMsg(&request)
		}
	}
	if err == nil && len(messages) > 0 {
		err = stream.CloseSend()
	}
	return stream, err
}

// What a stream brings until its end.
func all(stream grpc.ClientStream) (string, error) {
	var answers []string
	for {
		var answer []byte
		if err := stream.RecvMsg(&answer); err == io.EOF {
			return strings.Join(answers, " "), nil
		} else if err != nil {
			return strings.Join(answers, " "), err
		}
		answers = append(answers, string(answer))
	}
}

func check(what string, err error, isRight bool) {
	if err != nil || !isRight {
		panic(fmt.Sprint(what, ": ", err))
	}
}

func (c client) calls() {
	ctx, done := context.WithTimeout(context.Background(), 60*time.Second)
	defer done()
	said := metadata.AppendToOutgoingContext(ctx, "x-said", "well", "x-bytes-bin", "\x00\xff")
	var trailers metadata.MD
	answer, err := c.unary(said, []byte("hello"), grpc.Trailer(&trailers))
	check("unary", err, string(answer) == "hello")
	isRight := trailers.Get("x-said")[0] == "well" && trailers.Get("x-bytes-bin")[0] == "\x00\xff"
	check("metadata", nil, isRight)
	large := bytes.Repeat([]byte("x"), 4<<20-1024)
	answer, err = c.unary(ctx, large)
	check("a message of 4 MB", err, bytes.Equal(answer, large))
	for code := 1; code <= 16; code++ {
		_, err = c.unary(ctx, []byte(fmt.Sprintf("status %d", code)))
		told := status.Convert(err)
		isRight := told.Code() == codes.Code(code) && told.Message() == fmt.Sprintf("no: %d \u00fc", code)
		check(fmt.Sprintf("status %d: %v", code, told), nil, isRight)
	}
	stream, err := c.stream(ctx, "ServerStream", "5")
	check("a stream of the server", err, true)
	text, err := all(stream)
	check("a stream of the server", err, text == "0 1 2 3 4")
	stream, err = c.stream(ctx, "ClientStream", "a", "bc", "def")
	check("a stream of the client", err, true)
	text, err = all(stream)
	check("a stream of the client", err, text == "6")
	stream, err = c.stream(ctx, "Both")
	check("streams both ways", err, true)
	for _, word := range []string{"one", "two", "three"} {
		request, answer := []byte(word), []byte(nil)
		check("to send", stream.SendMsg(&request), true)
		check("to receive", stream.RecvMsg(&answer), string(answer) == strings.ToUpper(word))
	}
	check("the end of streams both ways", stream.CloseSend(), true)
	text, err = all(stream)
	check("the end of streams both ways", err, text == "")
}

func (c client) left() (number int) {
	answer, err := c.unary(context.Background(), []byte("left"))
	check("left", err, true)
	fmt.Sscan(string(answer), &number)
	return number
}

func (c client) repeat(count int) string {
	deadlines, ofStreams, cancels, before := 0, 0, 0, c.left()
	within := func(call func(context.Context) error) codes.Code {
		ctx, done := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer done()
		return status.Code(call(ctx))
	}
	tally := func(into *int, code, wanted codes.Code) {
		if code == wanted {
			*into++
		} else {
			fmt.Fprintln(os.Stderr, "ended with", code)
		}
	}
	for number := 0; number < count; number++ {
		code := within(func(ctx context.Context) error { _, err := c.unary(ctx, []byte("wait")); return err })
		tally(&deadlines, code, codes.DeadlineExceeded)
		code = within(func(ctx context.Context) error {
			stream, err := c.stream(ctx, "ServerStream", "1 wait")
			if err == nil {
				_, err = all(stream)
			}
			return err
		})
		tally(&ofStreams, code, codes.DeadlineExceeded)
		ctx, cancel := context.WithCancel(context.Background())
		stream, err := c.stream(ctx, "ServerStream", "1 hold")
		check("a stream", err, true)
		var first []byte
		check("its first message", stream.RecvMsg(&first), true)
		cancel()
		_, err = all(stream)
		tally(&cancels, status.Code(err), codes.Canceled)
	}
	until := time.Now().Add(20 * time.Second)
	for c.left() < before+count && time.Now().Before(until) {
	}
	return fmt.Sprintf("deadlines %d, of streams %d, cancels %d, seen %d", deadlines, ofStreams, cancels, c.left()-before)
}

func do(line string) (said string) {
	defer func() {
		if failure := recover(); failure != nil {
			said = "failed: " + strings.ReplaceAll(fmt.Sprint(failure), "\n", " ")
		}
	}()
	var what, address string
	var count int
	fmt.Sscan(line, &what, &address, &count)
	connection, err := grpc.Dial(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	check("dial", err, true)
	defer connection.Close()
	if what == "repeat" {
		return client{connection}.repeat(count)
	}
	client{connection}.calls()
	return "ok"
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}))
	server.RegisterService(&service, nil)
	go server.Serve(listener)
	fmt.Printf("port %d\n", listener.Addr().(*net.TCPAddr).Port)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(do(lines.Text()))
	}
}

// A service of gRPC with messages of every kind, as tests/plugins/grpc_server.py: it does the same, with the library of Go. The
// argument is the file with its messages, tests/plugins/kinds.proto. It says its port, and each line that it reads lets one held
// stream go on.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Finds the messages of the file, and those of the library: an Any can have one of these.
type resolver struct{ linker.Resolver }

func (r resolver) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if found, err := r.Resolver.FindMessageByURL(url); err == nil {
		return found, nil
	}
	return protoregistry.GlobalTypes.FindMessageByURL(url)
}

type service struct {
	types  resolver
	all    protoreflect.MessageType
	detail protoreflect.MessageType
	lines  chan struct{}
}

// A message whose fields can be named.
type message struct{ protoreflect.Message }

func (m message) field(name string) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByName(protoreflect.Name(name))
}

func (m message) text(name string) string { return m.Get(m.field(name)).String() }

func (m message) set(name string, value interface{}) {
	m.Set(m.field(name), protoreflect.ValueOf(value))
}

func (m message) number() int { return int(m.Get(m.field("number")).Int()) }

func (s *service) failure(code codes.Code, told, reason string) error {
	detail := message{s.detail.New()}
	detail.set("reason", reason)
	answer := &rpc.Status{Code: int32(code), Message: told}
	for _, part := range []proto.Message{detail.Interface(), durationpb.New(time.Second)} {
		packed, err := anypb.New(part)
		if err != nil {
			log.Fatal(err)
		}
		answer.Details = append(answer.Details, packed)
	}
	return status.ErrorProto(answer)
}

// What the service was asked, as JSON of this library, and the metadata.
func (s *service) describe(ctx context.Context, asked, answer message) error {
	seen, err := protojson.MarshalOptions{UseProtoNames: true, Resolver: s.types}.Marshal(asked.Interface())
	if err != nil {
		return err
	}
	told := map[string]interface{}{"remaining": nil}
	if end, is := ctx.Deadline(); is {
		told["remaining"] = time.Until(end).Seconds()
	}
	fields, _ := metadata.FromIncomingContext(ctx)
	for name, values := range fields {
		// This library shows the type of the call itself as well.
		if value := values[len(values)-1]; name != "content-type" || value != "application/grpc" {
			told[name] = value
		}
	}
	metadata, err := json.Marshal(told)
	answer.set("seen", string(seen))
	answer.set("metadata", string(metadata))
	return err
}

func (s *service) say(ctx context.Context, asked message) (proto.Message, error) {
	answer := message{s.all.New()}
	switch asked.text("text") {
	case "refuse":
		return nil, s.failure(codes.NotFound, `no such "thing" ü`, "gone")
	case "code":
		return nil, status.Error(codes.Code(asked.number()), "as asked")
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	case "large":
		answer.set("text", strings.Repeat("x", asked.number()))
		return answer.Interface(), nil
	case "empty":
		return answer.Interface(), nil
	case "die":
		os.Exit(1)
	}
	answer.Message = proto.Clone(asked.Interface()).ProtoReflect()
	if asked.text("text") == "newer" {
		unknown := protowire.AppendTag(nil, 99, protowire.BytesType)
		answer.SetUnknown(protowire.AppendString(unknown, "of a later version"))
	}
	return answer.Interface(), s.describe(ctx, asked, answer)
}

func (s *service) list(asked message, stream grpc.ServerStream) error {
	for number := range asked.number() {
		if asked.text("text") == "hold" {
			<-s.lines
		}
		answer := message{s.all.New()}
		answer.set("number", int32(number))
		answer.set("user_name", asked.text("user_name"))
		if err := stream.SendMsg(answer.Interface()); err != nil {
			return err
		}
	}
	switch asked.text("text") {
	case "die":
		os.Exit(1)
	case "fail":
		return s.failure(codes.ResourceExhausted, "enough", "late")
	}
	return nil
}

func (s *service) description() *grpc.ServiceDesc {
	say := func(_ interface{}, ctx context.Context, read func(interface{}) error, _ grpc.UnaryServerInterceptor) (interface{}, error) {
		asked := s.all.New()
		if err := read(asked.Interface()); err != nil {
			return nil, err
		}
		return s.say(ctx, message{asked})
	}
	list := func(_ interface{}, stream grpc.ServerStream) error {
		asked := s.all.New()
		if err := stream.RecvMsg(asked.Interface()); err != nil {
			return err
		}
		return s.list(message{asked}, stream)
	}
	return &grpc.ServiceDesc{
		ServiceName: "kinds.Kinds",
		HandlerType: (*interface{})(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Say", Handler: say}},
		Streams:     []grpc.StreamDesc{{StreamName: "List", Handler: list, ServerStreams: true}},
	}
}

func main() {
	folder, name := filepath.Split(os.Args[1])
	sources := &protocompile.SourceResolver{ImportPaths: []string{folder}}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(sources)}
	files, err := compiler.Compile(context.Background(), name)
	if err != nil {
		log.Fatal(err)
	}
	served := &service{types: resolver{files.AsResolver()}, lines: make(chan struct{}, 1000)}
	for name, kind := range map[protoreflect.FullName]*protoreflect.MessageType{"kinds.All": &served.all, "kinds.Detail": &served.detail} {
		if *kind, err = served.types.FindMessageByName(name); err != nil {
			log.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	server.RegisterService(served.description(), nil)
	go func() { log.Fatal(server.Serve(listener)) }()
	fmt.Printf("port %d\n", listener.Addr().(*net.TCPAddr).Port)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		served.lines <- struct{}{}
		fmt.Println("done")
	}
}

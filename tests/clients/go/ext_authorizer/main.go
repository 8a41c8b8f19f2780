// An authorization service with Envoy's public protocol, as tests/plugins/authz.py: it takes the same orders and says the same. With the
// files of a certificate and a key, it speaks TLS.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"sync"

	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

type order struct {
	Answer json.RawMessage `json:"answer"`
	Fail   json.RawMessage `json:"fail"`
	Raw    *string         `json:"raw"`
	Hold   bool            `json:"hold"`
}

var (
	lock    sync.Mutex
	changed = sync.NewCond(&lock)
	now     = order{Answer: json.RawMessage("{}")}
	seen    = []interface{}{}
)

// Writes messages, and bytes as they are.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(value interface{}) ([]byte, error) {
	if raw, is := value.([]byte); is {
		return raw, nil
	}
	return proto.Marshal(value.(proto.Message))
}

func (codec) Unmarshal(bytes []byte, value interface{}) error {
	return proto.Unmarshal(bytes, value.(proto.Message))
}

// Notes what the service was asked, and returns the order that holds now.
func note(asked *auth.CheckRequest, fields metadata.MD) order {
	text, err := protojson.Marshal(asked)
	if err != nil {
		log.Fatal(err)
	}
	told := map[string]string{}
	for name, values := range fields {
		told[name] = values[len(values)-1]
	}
	lock.Lock()
	defer lock.Unlock()
	seen = append(seen, map[string]interface{}{"check": json.RawMessage(text), "metadata": told})
	for now.Hold {
		changed.Wait()
	}
	return now
}

func check(_ interface{}, ctx context.Context, read func(interface{}) error, _ grpc.UnaryServerInterceptor) (interface{}, error) {
	asked := &auth.CheckRequest{}
	if err := read(asked); err != nil {
		return nil, err
	}
	fields, _ := metadata.FromIncomingContext(ctx)
	now := note(asked, fields)
	if now.Fail != nil {
		var code codes.Code
		if err := code.UnmarshalJSON(now.Fail); err != nil {
			log.Fatal(err)
		}
		return nil, status.Error(code, "on purpose")
	}
	if now.Raw != nil {
		return hex.DecodeString(*now.Raw)
	}
	answer := &auth.CheckResponse{}
	return answer, protojson.Unmarshal(now.Answer, answer)
}

func take(line []byte) (interface{}, error) {
	var told map[string]json.RawMessage
	var next order
	if err := json.Unmarshal(line, &told); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(line, &next); err != nil {
		return nil, err
	}
	lock.Lock()
	defer lock.Unlock()
	if len(told) > 0 {
		now = next
	}
	since := seen
	seen = []interface{}{}
	changed.Broadcast()
	return since, nil
}

func main() {
	options := []grpc.ServerOption{grpc.ForceServerCodec(codec{})}
	if len(os.Args) == 3 {
		tls, err := credentials.NewServerTLSFromFile(os.Args[1], os.Args[2])
		if err != nil {
			log.Fatal(err)
		}
		options = append(options, grpc.Creds(tls))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(options...)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.auth.v3.Authorization",
		HandlerType: (*interface{})(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Check", Handler: check}},
	}, nil)
	go func() { log.Fatal(server.Serve(listener)) }()
	fmt.Printf("port %d\n", listener.Addr().(*net.TCPAddr).Port)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		since, err := take(lines.Bytes())
		if err != nil {
			log.Fatal(err)
		}
		text, err := json.Marshal(since)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(text))
	}
}

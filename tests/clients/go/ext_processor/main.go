// An external processor with Envoy's public protocol, as tests/plugins/processor.py: it takes the same orders and says the same.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"sync"

	mode "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

type order struct {
	Answers map[string]json.RawMessage `json:"answers"`
	Upper   bool                       `json:"upper"`
	Duplex  bool                       `json:"duplex"`
	Silent  string                     `json:"silent"`
	End     string                     `json:"end"`
	Fail    string                     `json:"fail"`
	First   json.RawMessage            `json:"first"`
}

var (
	lock sync.Mutex
	now  order
	seen = []interface{}{}
)

// Notes what the service was asked, and returns the order that holds now.
func note(what map[string]interface{}) order {
	lock.Lock()
	defer lock.Unlock()
	seen = append(seen, what)
	return now
}

func kindOf(message *extproc.ProcessingRequest) string {
	reflected := message.ProtoReflect()
	field := reflected.WhichOneof(reflected.Descriptor().Oneofs().ByName("request"))
	return string(field.Name())
}

func written(message *extproc.ProcessingRequest) json.RawMessage {
	text, err := protojson.Marshal(message)
	if err != nil {
		log.Fatal(err)
	}
	return text
}

func read(text json.RawMessage) (*extproc.ProcessingResponse, error) {
	response := &extproc.ProcessingResponse{}
	return response, protojson.Unmarshal(text, response)
}

func content(kind string, body []byte, last bool, now order) *extproc.ProcessingResponse {
	if now.Upper {
		body = bytes.ToUpper(body)
	}
	mutation := &extproc.BodyMutation{Mutation: &extproc.BodyMutation_Body{Body: body}}
	if now.Duplex {
		streamed := &extproc.StreamedBodyResponse{Body: body, EndOfStream: last}
		mutation = &extproc.BodyMutation{Mutation: &extproc.BodyMutation_StreamedResponse{StreamedResponse: streamed}}
	}
	answer := &extproc.BodyResponse{Response: &extproc.CommonResponse{BodyMutation: mutation}}
	if kind == "request_body" {
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: answer}}
	}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: answer}}
}

func plain(kind string, now order) (*extproc.ProcessingResponse, error) {
	if answer, found := now.Answers[kind]; found {
		return read(answer)
	}
	first, rest, _ := strings.Cut(kind, "_")
	name := first + strings.ToUpper(rest[:1]) + rest[1:]
	return read(json.RawMessage(fmt.Sprintf("{%q: {}}", name)))
}

type processor struct {
	extproc.UnimplementedExternalProcessorServer
}

func (processor) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	defer func() {
		lock.Lock()
		defer lock.Unlock()
		if now.Silent != "" {
			seen = append(seen, map[string]interface{}{"kind": "end"})
		}
	}()
	fields, _ := metadata.FromIncomingContext(stream.Context())
	told := map[string]string{}
	for name, values := range fields {
		told[name] = values[len(values)-1]
	}
	var held *extproc.ProcessingResponse
	isFirst, holds := true, false
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		kind := kindOf(message)
		now := note(map[string]interface{}{"kind": kind, "message": written(message), "metadata": told})
		switch kind {
		case now.End:
			return nil
		case now.Fail:
			return status.Error(codes.Unavailable, "on purpose")
		case now.Silent:
			continue
		}
		var answers []*extproc.ProcessingResponse
		if isFirst && now.First != nil {
			first, err := read(now.First)
			if err != nil {
				return err
			}
			answers = append(answers, first)
		}
		if isFirst {
			holds = message.GetProtocolConfig().GetRequestBodyMode() == mode.ProcessingMode_FULL_DUPLEX_STREAMED
			isFirst = false
		}
		if strings.HasSuffix(kind, "body") && (now.Upper || now.Duplex) {
			body := message.GetRequestBody()
			if kind == "response_body" {
				body = message.GetResponseBody()
			}
			if held != nil {
				answers, held = append(answers, held), nil
			}
			answers = append(answers, content(kind, body.GetBody(), body.GetEndOfStream(), now))
		} else {
			answer, err := plain(kind, now)
			if err != nil {
				return err
			}
			if holds && kind == "request_headers" {
				held = answer
			} else {
				answers = append(answers, answer)
			}
		}
		for _, answer := range answers {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	extproc.RegisterExternalProcessorServer(server, processor{})
	go func() { log.Fatal(server.Serve(listener)) }()
	fmt.Printf("port %d\n", listener.Addr().(*net.TCPAddr).Port)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var told map[string]json.RawMessage
		var next order
		if json.Unmarshal(lines.Bytes(), &told) != nil || json.Unmarshal(lines.Bytes(), &next) != nil {
			log.Fatal("an order is not valid")
		}
		lock.Lock()
		if len(told) > 0 {
			now = next
		}
		since, err := json.Marshal(seen)
		seen = []interface{}{}
		lock.Unlock()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(since))
	}
}

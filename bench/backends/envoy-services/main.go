// Services with Envoy's public protocols that change nothing: an authorization service that allows each request, and an external
// processor that answers each part of a message without changes.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"net"

	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
)

type authorization struct {
	auth.UnimplementedAuthorizationServer
}

func (authorization) Check(context.Context, *auth.CheckRequest) (*auth.CheckResponse, error) {
	return &auth.CheckResponse{Status: &status.Status{}}, nil
}

type processor struct {
	extproc.UnimplementedExternalProcessorServer
}

func answer(message *extproc.ProcessingRequest) (*extproc.ProcessingResponse, error) {
	switch message.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{}}}, nil
	case *extproc.ProcessingRequest_ResponseHeaders:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{}}}, nil
	case *extproc.ProcessingRequest_RequestBody:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{}}}, nil
	case *extproc.ProcessingRequest_ResponseBody:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: &extproc.BodyResponse{}}}, nil
	}
	return nil, errors.New("trailers are not processed; see processing_mode")
}

func (processor) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		told, err := answer(message)
		if err != nil {
			return err
		}
		if err := stream.Send(told); err != nil {
			return err
		}
	}
}

func main() {
	address := flag.String("listen", "127.0.0.1:9293", "the address that the target asks")
	flag.Parse()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	auth.RegisterAuthorizationServer(server, authorization{})
	extproc.RegisterExternalProcessorServer(server, processor{})
	log.Fatal(server.Serve(listener))
}

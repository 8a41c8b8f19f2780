// A web application firewall beside Weir: an external processor (`ext-proc`) that judges requests by the OWASP Core Rule Set with Coraza.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	crs "github.com/corazawaf/coraza-coreruleset/v4"
	"github.com/corazawaf/coraza/v3"
	"github.com/corazawaf/coraza/v3/types"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	kinds "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// The namespace of the metadata that Weir makes variables of: `$ext_proc_rules`.
const namespace = "crs"

// The most arguments of a request: those of the query, and those of its body, each value of JSON being one.
const mostArguments = 500

// The most bytes of a body: the time that the rules take grows with it.
const mostBody = 64 << 10

type firewall struct {
	extproc.UnimplementedExternalProcessorServer
	waf    coraza.WAF
	server string
	turns  turns
}

// How many requests are judged at a time: as many as there are processors, of one client half of these, so that others are still judged.
// The rules cannot be stopped once they run.
type turns struct {
	all     chan struct{}
	lock    sync.Mutex
	clients map[string]*share
}

type share struct {
	turns chan struct{}
	users int
}

// Waits for a turn, as long as Weir does for the answer. Returns what ends it.
func (t *turns) take(ctx context.Context, client string) (func(), error) {
	t.lock.Lock()
	own := t.clients[client]
	if own == nil {
		own = &share{turns: make(chan struct{}, max(1, cap(t.all)/2))}
		t.clients[client] = own
	}
	own.users++
	t.lock.Unlock()
	leave := func() {
		t.lock.Lock()
		defer t.lock.Unlock()
		if own.users--; own.users == 0 {
			delete(t.clients, client)
		}
	}
	select {
	case own.turns <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	select {
	case t.all <- struct{}{}:
	case <-ctx.Done():
		<-own.turns
		leave()
		return nil, ctx.Err()
	}
	return func() { <-t.all; <-own.turns; leave() }, nil
}

// The rules that decide come last: those that set the levels stand before them.
func rules(paranoia, threshold int, methods, setup, exclusions string, refuses bool) string {
	engine := "DetectionOnly"
	if refuses {
		engine = "On"
	}
	return strings.Join([]string{
		"Include @coraza.conf-recommended",
		"SecRuleEngine " + engine,
		"SecResponseBodyAccess Off",
		"SecRequestBodyLimit " + strconv.Itoa(mostBody),
		"SecRequestBodyInMemoryLimit " + strconv.Itoa(mostBody),
		"SecRequestBodyLimitAction Reject",
		"SecAuditEngine Off",
		// What is not read is not judged: further arguments would pass, and so would a target that cannot be read.
		"SecArgumentsLimit " + strconv.Itoa(mostArguments),
		`SecRule ARGUMENTS_LIMIT_REACHED "@eq 1" "id:101,phase:1,t:none,log,deny,status:400,msg:'Too many arguments in the query.'"`,
		`SecRule ARGUMENTS_LIMIT_REACHED "@eq 1" "id:102,phase:2,t:none,log,deny,status:400,msg:'Too many arguments.'"`,
		`SecRule URI_PARSE_ERROR "@eq 1" "id:103,phase:1,t:none,log,deny,status:400,msg:'The target cannot be read.'"`,
		"Include @crs-setup.conf.example",
		`SecAction "id:900000,phase:1,pass,nolog,setvar:tx.blocking_paranoia_level=` + strconv.Itoa(paranoia) + `"`,
		`SecAction "id:900110,phase:1,pass,nolog,setvar:tx.inbound_anomaly_score_threshold=` + strconv.Itoa(threshold) + `"`,
		`SecAction "id:900200,phase:1,pass,nolog,setvar:'tx.allowed_methods=` + methods + `'"`,
		setup,
		"Include @owasp_crs/*.conf",
		// Requests that Apache httpd makes to itself, without any rule: none of them comes by way of Weir.
		"SecRuleRemoveById 905100 905110",
		exclusions,
	}, "\n")
}

// One exchange.
type judged struct {
	firewall *firewall
	tx       types.Transaction
	context  context.Context
	client   string
}

// The answer to a message: to go on, or in place of the upstream.
func (one *judged) verdict(stopped *types.Interruption, goOn *extproc.ProcessingResponse) *extproc.ProcessingResponse {
	rules := []string{}
	for _, matched := range one.tx.MatchedRules() {
		// Those between are bookkeeping: they set variables, and match every request.
		if rule := matched.Rule(); (rule.ID() < 900000 || rule.ID() >= 911000) && matched.Message() != "" {
			rules = append(rules, strconv.Itoa(rule.ID()))
		}
	}
	if stopped != nil {
		goOn = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{
			ImmediateResponse: &extproc.ImmediateResponse{
				Status: &kinds.HttpStatus{Code: kinds.StatusCode(stopped.Status)},
				Body:   []byte("The request is refused.\n"),
			},
		}}
	}
	if len(rules) > 0 {
		told := structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"rules": structpb.NewStringValue(strings.Join(rules, " ")),
		}})
		goOn.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{namespace: told}}
	}
	return goOn
}

func value(header *core.HeaderValue) string {
	if len(header.RawValue) > 0 {
		return string(header.RawValue)
	}
	return header.Value
}

func (one *judged) head(message *extproc.HttpHeaders) (*types.Interruption, error) {
	var method, path string
	for _, header := range message.GetHeaders().GetHeaders() {
		switch text := value(header); header.Key {
		case ":method":
			method = text
		case ":path":
			path = text
		case ":authority":
			host, _, err := net.SplitHostPort(text)
			if err != nil {
				host = text
			}
			one.tx.SetServerName(host)
			one.tx.AddRequestHeader("host", text)
		case ":scheme":
		default:
			// What stands before the last comma can come from the client; Weir adds the address that it knows.
			if header.Key == "x-forwarded-for" {
				one.client = strings.TrimSpace(text[strings.LastIndexByte(text, ',')+1:])
			}
			one.tx.AddRequestHeader(header.Key, text)
		}
	}
	end, err := one.firewall.turns.take(one.context, one.client)
	if err != nil {
		return nil, err
	}
	defer end()
	one.tx.ProcessConnection(one.client, 0, one.firewall.server, 0)
	one.tx.ProcessURI(path, method, "HTTP/1.1")
	if stopped := one.tx.ProcessRequestHeaders(); stopped != nil {
		return stopped, nil
	}
	if !message.GetEndOfStream() {
		return nil, nil
	}
	return one.tx.ProcessRequestBody()
}

func (one *judged) body(message *extproc.HttpBody) (*types.Interruption, error) {
	end, err := one.firewall.turns.take(one.context, one.client)
	if err != nil {
		return nil, err
	}
	defer end()
	if stopped, _, err := one.tx.WriteRequestBody(message.GetBody()); stopped != nil || err != nil {
		return stopped, err
	}
	return one.tx.ProcessRequestBody()
}

func (f *firewall) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	one := &judged{firewall: f, tx: f.waf.NewTransaction(), context: stream.Context()}
	defer func() {
		one.tx.ProcessLogging()
		if err := one.tx.Close(); err != nil {
			log.Print(err)
		}
	}()
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var stopped *types.Interruption
		var answer *extproc.ProcessingResponse
		switch part := message.Request.(type) {
		case *extproc.ProcessingRequest_RequestHeaders:
			stopped, err = one.head(part.RequestHeaders)
			answer = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{}}}
		case *extproc.ProcessingRequest_RequestBody:
			stopped, err = one.body(part.RequestBody)
			answer = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{}}}
		default:
			return errors.New("only the heads and the bodies of requests are judged; see processing_mode")
		}
		if err != nil {
			return err
		}
		if err := stream.Send(one.verdict(stopped, answer)); err != nil {
			return err
		}
		if stopped != nil {
			return nil
		}
	}
}

// What the file has, if there is one.
func contents(file string) string {
	if file == "" {
		return ""
	}
	text, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	return string(text)
}

func main() {
	address := flag.String("listen", "127.0.0.1:9292", "the address that Weir asks")
	paranoia := flag.Int("paranoia", 1, "the paranoia level of the rule set, 1 to 4")
	threshold := flag.Int("threshold", 5, "the anomaly score from which on a request is refused")
	methods := flag.String("methods", "GET HEAD POST OPTIONS PUT PATCH DELETE", "the methods that are allowed")
	setup := flag.String("setup", "", "a file with directives that come before the rules: settings, and exceptions for some requests")
	exclusions := flag.String("exclusions", "", "a file with directives that come after the rules, such as SecRuleRemoveById")
	observes := flag.Bool("observe", false, "refuse nothing: only tell which rules match")
	flag.Parse()
	all := rules(*paranoia, *threshold, *methods, contents(*setup), contents(*exclusions), !*observes)
	waf, err := coraza.NewWAF(coraza.NewWAFConfig().WithRootFS(crs.FS).WithDirectives(all))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	host, _, _ := net.SplitHostPort(listener.Addr().String())
	server := grpc.NewServer(grpc.MaxRecvMsgSize(4 << 20))
	extproc.RegisterExternalProcessorServer(server, &firewall{
		waf:    waf,
		server: host,
		turns:  turns{all: make(chan struct{}, runtime.GOMAXPROCS(0)), clients: map[string]*share{}},
	})
	// The port may be one that the system has chosen.
	fmt.Printf("listening on %s\n", listener.Addr())
	log.Fatal(server.Serve(listener))
}

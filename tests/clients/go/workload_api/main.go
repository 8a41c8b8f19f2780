// A SPIFFE Workload API, and workloads that use it by way of the library go-spiffe.
//
//	workload_api serve DIR           one socket for each workload of the list below, DIR/NAME.sock; commands on standard input
//	workload_api origin SOCKET ID    an HTTPS server that demands the SPIFFE ID (or trust domain) ID of its clients
//	workload_api ask SOCKET ID ADDRESS NAME    requests to the workload ID at ADDRESS, with the server name NAME: one for each path
//	                                 on standard input, on one connection if it lasts; `new PATH` makes a new connection, and tells
//	                                 the SHA-1 of the certificate of the workload in place of the content
package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The SPIFFE IDs of each workload, the default one first; a hint follows `#`.
var workloads = map[string][]string{
	"gateway":  {"spiffe://example.org/gateway", "spiffe://example.org/edge#outside"},
	"shop":     {"spiffe://example.org/shop"},
	"orders":   {"spiffe://example.org/orders"},
	"partner":  {"spiffe://partner.test/billing"},
	"stranger": {"spiffe://stranger.test/x"},
	"forger":   {"spiffe://example.org/shop"},
}

// The trust domains whose bundles the workloads of a trust domain get beside their own.
var federated = map[string][]string{
	"example.org":   {"partner.test"},
	"partner.test":  {"example.org"},
	"stranger.test": {"example.org"},
}

func main() {
	must(len(os.Args) > 2, "see the source for the arguments")
	switch arguments := os.Args[2:]; os.Args[1] {
	case "serve":
		serve(arguments[0])
	case "origin":
		origin(arguments[0], arguments[1])
	case "ask":
		ask(arguments[0], arguments[1], arguments[2], arguments[3])
	}
}

func must(holds bool, problem string) {
	if !holds {
		fmt.Fprintln(os.Stderr, problem)
		os.Exit(1)
	}
}

func check(err error) {
	must(err == nil, fmt.Sprint(err))
}

// An authority of a trust domain.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func serial() *big.Int {
	number, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	check(err)
	return number
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	return key
}

func uri(text string) []*url.URL {
	parsed, err := url.Parse(text)
	check(err)
	return []*url.URL{parsed}
}

func newAuthority(domain string) authority {
	key := newKey()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{Organization: []string{domain}, SerialNumber: serial().String()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs: uri("spiffe://" + domain),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	check(err)
	certificate, err := x509.ParseCertificate(der)
	check(err)
	return authority{certificate, key}
}

// The state of the server. Whatever changes it wakes all streams.
type server struct {
	mutex       sync.Mutex
	authorities map[string][]authority
	// Which of them issues certificates.
	issuers map[string]int
	ttl     time.Duration
	// What is sent to a workload in place of its identity: "deny", "deny-once", "garbage", "huge", "empty", "cut", or nothing.
	instead map[string]string
	changed chan struct{}
	// The private key that was sent last for each SPIFFE ID.
	keys map[string]*ecdsa.PrivateKey
}

func (s *server) change(do func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) bundle(domain string) []byte {
	var der []byte
	for _, one := range s.authorities[domain] {
		der = append(der, one.certificate.Raw...)
	}
	return der
}

func (s *server) svid(name, named string) *workload.X509SVID {
	id, hint, _ := strings.Cut(named, "#")
	domain := uri(id)[0].Host
	by := domain
	if name == "forger" {
		by = "partner.test"
	}
	issuer, key := s.authorities[by][s.issuers[by]], newKey()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{Organization: []string{"test"}}, URIs: uri(id),
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(s.ttl), BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer.certificate, key.Public(), issuer.key)
	check(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	s.keys[id] = key
	return &workload.X509SVID{SpiffeId: id, X509Svid: der, X509SvidKey: pkcs8, Bundle: s.bundle(domain), Hint: hint}
}

// The answer for a workload, and what wakes its stream.
func (s *server) answer(name string) (*workload.X509SVIDResponse, error, chan struct{}) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	switch s.instead[name] {
	case "deny":
		return nil, status.Error(codes.PermissionDenied, "no identity issued"), s.changed
	case "deny-once":
		s.instead[name] = ""
		return nil, status.Error(codes.PermissionDenied, "no identity issued"), s.changed
	case "empty":
		return &workload.X509SVIDResponse{}, nil, s.changed
	case "huge":
		more := map[string][]byte{"spiffe://huge.test": make([]byte, 6<<20)}
		return &workload.X509SVIDResponse{FederatedBundles: more}, nil, s.changed
	}
	answer := &workload.X509SVIDResponse{FederatedBundles: map[string][]byte{}}
	for _, named := range workloads[name] {
		answer.Svids = append(answer.Svids, s.svid(name, named))
	}
	domain := uri(workloads[name][0])[0].Host
	for _, other := range federated[domain] {
		answer.FederatedBundles["spiffe://"+other] = s.bundle(other)
	}
	if s.instead[name] == "garbage" {
		answer.Svids[0].X509Svid = []byte("garbage")
	}
	return answer, nil, s.changed
}

// The API of one workload.
type api struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	server *server
	name   string
}

func (a api) FetchX509SVID(_ *workload.X509SVIDRequest, stream workload.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	sent, _ := metadata.FromIncomingContext(stream.Context())
	if values := sent.Get("workload.spiffe.io"); len(values) != 1 || values[0] != "true" {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		answer, err, changed := a.server.answer(a.name)
		if err != nil {
			return err
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Opens the socket of a workload.
func (s *server) open(socket, name string) *grpc.Server {
	listener, err := net.Listen("unix", socket)
	check(err)
	served := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(served, api{server: s, name: name})
	go served.Serve(listener)
	return served
}

func serve(directory string) {
	s := &server{
		authorities: map[string][]authority{}, issuers: map[string]int{}, ttl: time.Hour,
		instead: map[string]string{}, changed: make(chan struct{}), keys: map[string]*ecdsa.PrivateKey{},
	}
	for domain := range federated {
		s.authorities[domain] = []authority{newAuthority(domain)}
	}
	opened := map[string]*grpc.Server{}
	socket := func(name string) string { return filepath.Join(directory, name+".sock") }
	for name := range workloads {
		opened[name] = s.open(socket(name), name)
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		said := "done"
		switch word {
		case "key": // Tells the private number of a key in hexadecimal.
			s.mutex.Lock()
			said = fmt.Sprintf("%064x", s.keys[rest].D)
			s.mutex.Unlock()
		case "rotate": // New certificates for all.
			s.change(func() {})
		case "prepare": // A new authority of a trust domain is trusted.
			s.change(func() { s.authorities[rest] = append(s.authorities[rest], newAuthority(rest)) })
		case "activate": // The newest authority issues from now on.
			s.change(func() { s.issuers[rest] = len(s.authorities[rest]) - 1 })
		case "forget": // Older authorities are trusted no more.
			s.change(func() { s.authorities[rest] = s.authorities[rest][s.issuers[rest]:]; s.issuers[rest] = 0 })
		case "ttl":
			ttl, err := time.ParseDuration(rest)
			check(err)
			s.change(func() { s.ttl = ttl })
		case "instead": // What a workload gets in place of its identity.
			name, what, _ := strings.Cut(rest, " ")
			s.change(func() { s.instead[name] = what })
		case "close":
			opened[rest].Stop()
			os.Remove(socket(rest))
		case "open":
			opened[rest] = s.open(socket(rest), rest)
		}
		fmt.Println(said)
	}
}

func source(socket string) *workloadapi.X509Source {
	limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	found, err := workloadapi.NewX509Source(limit, workloadapi.WithClientOptions(workloadapi.WithAddr("unix://"+socket)))
	check(err)
	return found
}

// Those with a path are one workload, the others all of a trust domain.
func authorizer(id string) tlsconfig.Authorizer {
	if strings.Count(id, "/") == 2 {
		return tlsconfig.AuthorizeMemberOf(spiffeid.RequireTrustDomainFromString(id))
	}
	return tlsconfig.AuthorizeID(spiffeid.RequireFromString(id))
}

func origin(socket, id string) {
	own := source(socket)
	config := tlsconfig.MTLSServerConfig(own, own, authorizer(id))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	check(err)
	fmt.Println(listener.Addr())
	answer := func(writer http.ResponseWriter, request *http.Request) {
		content, err := io.ReadAll(request.Body)
		if err != nil {
			return
		}
		if request.URL.Path != "/peer" {
			fmt.Fprintf(writer, "%s %s %d", request.Method, request.URL.Path, len(content))
			return
		}
		peer, err := x509svid.IDFromCert(request.TLS.PeerCertificates[0])
		check(err)
		fmt.Fprintf(writer, "%s %s", peer, request.TLS.PeerCertificates[0].SerialNumber)
	}
	// What it refuses is told by those that are refused.
	quiet := &http.Server{Handler: http.HandlerFunc(answer), ErrorLog: log.New(io.Discard, "", 0)}
	go func() { io.Copy(io.Discard, os.Stdin); os.Exit(0) }()
	check(quiet.Serve(listener))
}

func ask(socket, id, address, name string) {
	own := source(socket)
	config := tlsconfig.MTLSClientConfig(own, own, authorizer(id))
	config.ServerName = name
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: config}}
	paths := bufio.NewScanner(os.Stdin)
	for paths.Scan() {
		path, isNew := strings.CutPrefix(paths.Text(), "new ")
		if isNew {
			client.CloseIdleConnections()
		}
		request, err := http.NewRequest("GET", "https://"+address+path, nil)
		check(err)
		request.Host = name
		connection := "new"
		trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
			if got.Reused {
				connection = "kept"
			}
		}}
		answer, err := client.Do(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
		if err != nil {
			fmt.Println("refused:", strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		check(err)
		if isNew {
			body = []byte(fmt.Sprintf("%x", sha1.Sum(answer.TLS.PeerCertificates[0].Raw)))
		}
		fmt.Println(connection, answer.StatusCode, strings.ReplaceAll(string(body), "\n", " "))
	}
}

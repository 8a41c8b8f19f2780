// A client, and a server, of HTTP/3 by quic-go: see tests/clients/README.md.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const name = "a.test"

type client struct {
	quic *quic.Conn
	http *http3.ClientConn
}

func main() {
	if os.Args[1] == "serve" {
		serve(os.Args[2], os.Args[3])
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	authority, err := os.ReadFile(os.Args[2])
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	settings := &tls.Config{RootCAs: trusted, ServerName: name, NextProtos: []string{http3.NextProtoH3}}
	connection, err := socket().Dial(ctx, address(os.Args[1]), settings, &quic.Config{})
	check(err)
	asking := client{connection, (&http3.Transport{}).NewClientConn(connection)}
	var said any
	switch argument := os.Args[4]; os.Args[3] {
	case "objects":
		said = asking.objects(number(argument))
	case "download":
		said = asking.download(ctx, argument)
	case "upload":
		said = asking.upload(ctx, argument, number(os.Args[5]))
	case "move":
		said = asking.move(ctx, number(argument))
	default:
		log.Fatalf("unknown order %q", os.Args[3])
	}
	check(json.NewEncoder(os.Stdout).Encode(said))
}

// Serves /content/LENGTH, and says at which port.
func serve(certificate, key string) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	check(err)
	content := http.NewServeMux()
	content.HandleFunc("/content/{length}", func(response http.ResponseWriter, request *http.Request) {
		response.Write(make([]byte, number(request.PathValue("length"))))
	})
	at, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check(err)
	fmt.Println(at.LocalAddr().(*net.UDPAddr).Port)
	server := http3.Server{Handler: content, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}}
	check(server.Serve(at))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func address(port string) net.Addr {
	return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: number(port)}
}

// A socket of its own, on another port.
func socket() *quic.Transport {
	connection, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check(err)
	return &quic.Transport{Conn: connection}
}

func (c client) send(ctx context.Context, method, path string, content io.Reader, length int) *http.Response {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+name+path, content)
	check(err)
	request.ContentLength = int64(length)
	response, err := c.http.RoundTrip(request)
	check(err)
	return response
}

func (c client) object(number int) string {
	path := fmt.Sprintf("/object/%d", number)
	response := c.send(context.Background(), "GET", path, nil, 0)
	body, err := io.ReadAll(response.Body)
	check(err)
	return string(body)
}

// All at the same time.
func (c client) objects(count int) any {
	bodies := make([]string, count)
	var group sync.WaitGroup
	for index := range bodies {
		group.Add(1)
		go func() {
			defer group.Done()
			bodies[index] = c.object(index)
		}()
	}
	group.Wait()
	return map[string]any{"bodies": bodies}
}

func (c client) download(ctx context.Context, path string) any {
	response := c.send(ctx, "GET", path, nil, 0)
	sum := sha256.New()
	length, err := io.Copy(sum, response.Body)
	check(err)
	return map[string]any{"status": response.StatusCode, "length": length, "sum": hex.EncodeToString(sum.Sum(nil))}
}

func (c client) upload(ctx context.Context, path string, length int) any {
	sum := sha256.New()
	content := io.TeeReader(io.LimitReader(rand.Reader, int64(length)), sum)
	response := c.send(ctx, "POST", path, content, length)
	body, err := io.ReadAll(response.Body)
	check(err)
	return map[string]any{"status": response.StatusCode, "sum": hex.EncodeToString(sum.Sum(nil)), "body": string(body)}
}

// Moves to another port so many times, each of which the server has to prove, and asks before and after each.
func (c client) move(ctx context.Context, count int) any {
	bodies := []string{c.object(0)}
	ports := []string{c.quic.LocalAddr().String()}
	var before *quic.Path
	for index := 1; index <= count; index++ {
		transport := socket()
		path, err := c.quic.AddPath(transport)
		check(err)
		check(path.Probe(ctx))
		check(path.Switch())
		if before != nil {
			// So that its connection id is replaced by another one.
			check(before.Close())
		}
		before = path
		bodies = append(bodies, c.object(index))
		ports = append(ports, transport.Conn.LocalAddr().String())
	}
	return map[string]any{"bodies": bodies, "ports": ports}
}

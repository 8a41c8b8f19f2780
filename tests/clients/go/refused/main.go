// Sends content that nobody wants, over HTTP/2 with Go's library: `refused BASE CA` reads lines `PATH BYTES`, and says the
// status of each, or what went wrong.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
)

func main() {
	base, authority := os.Args[1], os.Args[2]
	file, err := os.ReadFile(authority)
	if err != nil {
		log.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(file)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, ForceAttemptHTTP2: true}
	client := &http.Client{Transport: transport}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var path string
		var size int
		if _, err := fmt.Sscan(lines.Text(), &path, &size); err != nil {
			log.Fatal(err)
		}
		fmt.Println(ask(client, base+path, size))
	}
}

func ask(client *http.Client, url string, size int) string {
	answer, err := client.Post(url, "application/octet-stream", bytes.NewReader(bytes.Repeat([]byte("x"), size)))
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
	if err == nil && answer.ProtoMajor != 2 {
		err = fmt.Errorf("it speaks %s", answer.Proto)
	}
	if err != nil {
		return "failed: " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return fmt.Sprint(answer.StatusCode)
}

// relay LISTEN UPSTREAM LOG DELAY: forwards TCP connections like a link with this latency in each direction (a duration
// such as 10ms). A new connection takes a round trip before any data arrives. Each HTTP/1.1 request is logged in LOG as
// a line of JSON, when its response is complete; LOG is - for connections with TLS.
package main

import (
	"bufio"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// Request is the log entry of a request. Times are in seconds since 1970, measured on the client's side of the relay.
type Request struct {
	Connection int64   `json:"connection"`
	Asked      float64 `json:"asked"`
	First      float64 `json:"first"`
	Last       float64 `json:"last"`
	Method     string  `json:"method"`
	Path       string  `json:"path"`
	Range      string  `json:"range"`
	Status     int     `json:"status"`
	Bytes      int64   `json:"bytes"`
	Whole      bool    `json:"whole"`
}

// Piece is the data of a read from one side, and the time when the other side gets it.
type Piece struct {
	due   time.Time
	bytes []byte
}

var (
	output *json.Encoder
	lock   sync.Mutex
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("relay LISTEN UPSTREAM LOG DELAY")
	}
	delay, err := time.ParseDuration(os.Args[4])
	must(err)
	if os.Args[3] != "-" {
		file, err := os.Create(os.Args[3])
		must(err)
		output = json.NewEncoder(file)
	}
	listener, err := net.Listen("tcp", os.Args[1])
	must(err)
	for number := int64(1); ; number++ {
		client, err := listener.Accept()
		must(err)
		go serve(client, os.Args[2], number, delay)
	}
}

func serve(client net.Conn, upstream string, number int64, delay time.Duration) {
	defer client.Close()
	open := time.Now().Add(2 * delay)
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer server.Close()
	if output == nil {
		go pass(client, server, open, delay, nil, nil)
		pass(server, client, open, delay, nil, nil)
		return
	}
	asked, toServer := io.Pipe()
	answered, toClient := io.Pipe()
	requests := make(chan *http.Request, 1024)
	times := make(chan time.Time, 1024)
	go watchRequests(asked, requests, times)
	watched := make(chan struct{})
	go func() {
		watchAnswers(answered, requests, times, number)
		close(watched)
	}()
	go func() {
		pass(client, server, open, delay, toServer.Write, nil)
		toServer.Close()
	}()
	pass(server, client, open, delay, nil, toClient.Write)
	toClient.Close()
	<-watched
}

// pass copies from one side to the other. It sends nothing before `open`, and delays each piece by `delay`. The
// watchers get the pieces when they arrive and when they leave.
func pass(from, to net.Conn, open time.Time, delay time.Duration, came, went func([]byte) (int, error)) {
	// Enough small pieces for 1 Gbit/s.
	pieces := make(chan Piece, 4096)
	stop := make(chan struct{})
	go func() {
		defer close(pieces)
		buffer := make([]byte, 64<<10)
		for {
			size, err := from.Read(buffer)
			if size > 0 {
				bytes := append([]byte(nil), buffer[:size]...)
				if came != nil {
					came(bytes)
				}
				sent := time.Now()
				if sent.Before(open) {
					sent = open
				}
				select {
				case pieces <- Piece{sent.Add(delay), bytes}:
				case <-stop:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for piece := range pieces {
		time.Sleep(time.Until(piece.due))
		if _, err := to.Write(piece.bytes); err != nil {
			close(stop)
			from.Close()
			return
		}
		if went != nil {
			went(piece.bytes)
		}
	}
	if tcp, ok := to.(*net.TCPConn); ok {
		tcp.CloseWrite()
	}
}

// The watchers always read to the end, so they do not hold up the connections that they watch.
func watchRequests(from io.Reader, requests chan<- *http.Request, times chan<- time.Time) {
	defer close(requests)
	reader := bufio.NewReader(from)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			break
		}
		times <- time.Now()
		requests <- request
		io.Copy(io.Discard, request.Body)
	}
	io.Copy(io.Discard, from)
}

func watchAnswers(from io.Reader, requests <-chan *http.Request, times <-chan time.Time, number int64) {
	reader := bufio.NewReader(from)
	for request := range requests {
		entry := Request{Connection: number, Asked: seconds(<-times), Method: request.Method,
			Path: request.URL.RequestURI(), Range: request.Header.Get("Range")}
		answer, err := http.ReadResponse(reader, request)
		if err == nil {
			entry.First, entry.Status = seconds(time.Now()), answer.StatusCode
			entry.Bytes, err = io.Copy(io.Discard, answer.Body)
			entry.Last, entry.Whole = seconds(time.Now()), err == nil
		}
		lock.Lock()
		output.Encode(entry)
		lock.Unlock()
		if err != nil {
			break
		}
	}
	io.Copy(io.Discard, from)
	for range requests {
		<-times
	}
}

func seconds(at time.Time) float64 { return float64(at.UnixMicro()) / 1e6 }

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

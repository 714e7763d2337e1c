// Program sctp runs agnhost (/agnhost.real) and stands in for its SCTP where the kernel has none. A packet filter judges
// the first packet of an association, so that is all it sends and answers: INIT, and INIT ACK, on raw sockets, IPv4 only.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	agnhost    = "/agnhost.real"
	serves     = "SERVE_SCTP_PORT_"
	initChunk  = 1
	initAck    = 2
	abortChunk = 6
	headerSize = 12
)

func main() {
	if descriptor, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, syscall.IPPROTO_SCTP); err == nil {
		_ = syscall.Close(descriptor)
		become()
	}
	switch {
	case len(os.Args) > 2 && os.Args[1] == "connect" && option("--protocol", "tcp") == "sctp":
		os.Exit(connect(address(), limit()))
	case len(os.Args) > 1 && os.Args[1] == "porter":
		os.Exit(porter())
	default:
		become()
	}
}

// become replaces this program by agnhost.
func become() {
	err := syscall.Exec(agnhost, append([]string{agnhost}, os.Args[1:]...), os.Environ())
	fmt.Fprintln(os.Stderr, "agnhost cannot be run:", err)
	os.Exit(1)
}

// option returns the value of a flag, written with or without an equals sign.
func option(name, otherwise string) string {
	for i, word := range os.Args {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
		if word == name && i+1 < len(os.Args) {
			return os.Args[i+1]
		}
	}
	return otherwise
}

// address returns the argument that is not a flag or its value.
func address() string {
	for i := 2; i < len(os.Args); i++ {
		if !strings.HasPrefix(os.Args[i], "-") {
			return os.Args[i]
		}
		if !strings.Contains(os.Args[i], "=") {
			i++
		}
	}
	return ""
}

func limit() time.Duration {
	duration, err := time.ParseDuration(option("--timeout", "0s"))
	if err != nil || duration <= 0 {
		return time.Minute
	}
	return duration
}

// connect sends INIT until something answers, and says what agnhost would say. It returns the exit code.
func connect(to string, within time.Duration) int {
	host, text, err := net.SplitHostPort(to)
	port, conversion := strconv.ParseUint(text, 10, 16)
	target, resolution := net.ResolveIPAddr("ip4", host)
	if problem := errors.Join(err, conversion, resolution); problem != nil {
		fmt.Fprintln(os.Stderr, "OTHER:", problem)
		return 1
	}
	socket, err := net.DialIP("ip4:132", nil, target)
	if err != nil {
		fmt.Fprintln(os.Stderr, "OTHER:", err)
		return 1
	}
	defer socket.Close()
	own := uint16(32768 + rand.IntN(28000))
	end := time.Now().Add(within)
	buffer := make([]byte, 2048)
	for time.Now().Before(end) {
		if _, err := socket.Write(packet(initChunk, own, uint16(port), 0)); err != nil {
			time.Sleep(50 * time.Millisecond) // an ICMP error of the packet before
		}
		again := time.Now().Add(time.Second)
		if again.After(end) {
			again = end
		}
		_ = socket.SetReadDeadline(again)
		for {
			// Not Read: that would leave the header of IP before the packet.
			size, _, err := socket.ReadFromIP(buffer)
			if err != nil {
				break
			}
			answer := buffer[:size]
			if size <= headerSize || binary.BigEndian.Uint16(answer) != uint16(port) || binary.BigEndian.Uint16(answer[2:]) != own {
				continue
			}
			switch answer[headerSize] {
			case initAck:
				return 0
			case abortChunk:
				fmt.Fprintln(os.Stderr, "REFUSED")
				return 1
			}
		}
	}
	fmt.Fprintln(os.Stderr, "TIMEOUT")
	return 1
}

// porter runs agnhost without its SCTP ports, and answers INIT on these.
func porter() int {
	ports := map[uint16]bool{}
	var environment []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		text, ok := strings.CutPrefix(name, serves)
		if port, err := strconv.ParseUint(text, 10, 16); ok && err == nil {
			ports[uint16(port)] = true
		} else {
			environment = append(environment, entry)
		}
	}
	if len(ports) > 0 {
		socket, err := net.ListenIP("ip4:132", nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, "raw sockets are needed:", err)
			return 1
		}
		go answer(socket, ports)
	}
	process := exec.Command(agnhost, os.Args[1:]...)
	process.Env, process.Stdout, process.Stderr = environment, os.Stdout, os.Stderr
	if err := process.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "agnhost cannot be run:", err)
		return 1
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for received := range signals {
			_ = process.Process.Signal(received)
		}
	}()
	_ = process.Wait()
	return process.ProcessState.ExitCode()
}

// answer sends INIT ACK for every INIT to one of the ports. All containers of a pod see all packets of the pod.
func answer(socket *net.IPConn, ports map[uint16]bool) {
	buffer := make([]byte, 2048)
	for {
		size, from, err := socket.ReadFromIP(buffer)
		if err != nil {
			return
		}
		if size < headerSize+8 || buffer[headerSize] != initChunk {
			continue
		}
		client, port := binary.BigEndian.Uint16(buffer), binary.BigEndian.Uint16(buffer[2:])
		if ports[port] {
			tag := binary.BigEndian.Uint32(buffer[headerSize+4:])
			_, _ = socket.WriteToIP(packet(initAck, port, client, tag), from)
		}
	}
}

// packet returns a packet with one INIT or INIT ACK chunk (RFC 9260, section 3).
func packet(kind byte, from, to uint16, verification uint32) []byte {
	order := binary.BigEndian
	bytes := order.AppendUint16(nil, from)
	bytes = order.AppendUint16(bytes, to)
	bytes = order.AppendUint32(bytes, verification)
	bytes = order.AppendUint32(bytes, 0) // the checksum, set below
	cookie := []byte{}
	if kind == initAck {
		cookie = []byte{0, 7, 0, 8, 1, 2, 3, 4} // a state cookie, which an INIT ACK must have
	}
	bytes = append(bytes, kind, 0)
	bytes = order.AppendUint16(bytes, uint16(20+len(cookie)))
	bytes = order.AppendUint32(bytes, rand.Uint32()|1) // our tag, never 0
	bytes = order.AppendUint32(bytes, 1<<16)           // the window
	bytes = order.AppendUint16(bytes, 1)               // streams out
	bytes = order.AppendUint16(bytes, 1)               // and in
	bytes = order.AppendUint32(bytes, rand.Uint32())   // the first transmission number
	bytes = append(bytes, cookie...)
	sum := crc32.Checksum(bytes, crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(bytes[8:], sum)
	return bytes
}

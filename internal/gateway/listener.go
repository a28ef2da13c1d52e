package gateway

import (
	"net"
	"sync"
)

// maxPerAddress is how many connections one address may have. Each pod has its own; where they come through their node, its
// pods together stay below it.
const maxPerAddress = 400

// perAddress is a listener that closes what one address opens beyond its share, so that it cannot take all connections.
type perAddress struct {
	net.Listener
	open *shares[string]
}

func newPerAddress(l net.Listener, limit int) net.Listener {
	return &perAddress{Listener: l, open: newShares[string](limit)}
}

// Accept implements net.Listener.
func (l *perAddress) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
		if err == nil && l.open.enter(host) {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { l.open.leave(host) })}, nil
		}
		_ = conn.Close()
	}
}

// counted is a connection that counts for its address until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

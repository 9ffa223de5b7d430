package tds

import "io"

// login answers PRELOGIN and LOGIN7. There is no encryption.
func (s *session) login() error {
	m, err := readMessage(s.conn)
	if err != nil {
		return err
	}
	if m.kind != prelogin {
		return io.ErrUnexpectedEOF
	}
	// VERSION at 11, six bytes; ENCRYPTION at 17: not supported ([MS-TDS] 2.2.6.5).
	options := []byte{0, 0, 11, 0, 6, 1, 0, 17, 0, 1, 0xFF, 16, 0, 0x03, 0xE8, 0, 0, 2}
	if err := writeMessage(s.conn, s.spid, options, true); err != nil {
		return err
	}
	if m, err = readMessage(s.conn); err != nil {
		return err
	}
	if m.kind != login7 {
		return io.ErrUnexpectedEOF
	}
	l, err := readLogin(m.body)
	if err != nil {
		return err
	}
	s.readOnly, s.program, s.host = l.readOnly, l.program, l.host
	out := new(response)
	if said := s.enter(l); said != nil {
		if first := precededBy[said]; first != nil {
			out.error(first)
		}
		out.error(said)
		out.done(tokenDone, doneError, 0)
		_ = writeMessage(s.conn, s.spid, out.body, true)
		return said
	}
	out.environment(envDatabase, toUTF16(l.database), toUTF16("master"))
	out.loginAck()
	out.environment(envPacketSize, toUTF16("4096"), toUTF16("4096"))
	out.done(tokenDone, 0, 0)
	return writeMessage(s.conn, s.spid, out.body, true)
}

func (s *session) enter(l login) *sqlError {
	if l.user != user || l.password != password {
		return errLogin
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	db := s.server.databases[l.database]
	if db == nil || db.offline {
		return errNoDatabase
	}
	s.db = db
	return nil
}

type login struct {
	user, password, database string
	program, host            string
	readOnly                 bool
}

// readLogin reads the needed fields of LOGIN7 ([MS-TDS] 2.2.6.4).
func readLogin(body []byte) (login, error) {
	field := func(at int) []byte {
		d := decoder{rest: body}
		d.bytes(at)
		offset, length := int(d.uint16()), int(d.uint16())
		d = decoder{rest: body, err: d.err}
		d.bytes(offset)
		return d.bytes(2 * length)
	}
	if len(body) < 94 {
		return login{}, errShort
	}
	hidden := field(44)
	clear := make([]byte, len(hidden))
	for i, b := range hidden {
		b ^= 0xA5
		clear[i] = b<<4 | b>>4
	}
	l := login{user: fromUTF16(field(40)), password: fromUTF16(clear), database: fromUTF16(field(68)),
		program: fromUTF16(field(48)), host: fromUTF16(field(36)), readOnly: body[26]&0x20 != 0}
	if l.database == "" {
		l.database = "master"
	}
	return l, nil
}

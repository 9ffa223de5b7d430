package email_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/email"
)

// An intended e-mail is the body as package json decodes it: if a field occurs twice, the last one
// counts.
type intended struct {
	From        string
	To          []string
	Subject     string
	Text, HTML  string
	Attachments []struct {
		Name, Type string
		Content    []byte
	}
}

// Every accepted body becomes a text that a mail server and a mailbox read as exactly the intended
// e-mail: the same headers, recipients and parts.
func FuzzAnAcceptedEmailIsReadAsItWasMeant(f *testing.F) {
	marshal := func(v any) []byte {
		body, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		return body
	}
	for _, text := range []string{"plain", "Für", "a\nBcc: b@x", "a\r\n\r\nbody", "=?utf-8?q?=0D=0AX:_y?=", "\u2028", "\x00", "\"<>\\,;:@", strings.Repeat("é ", 120),
		" a  b ", strings.Repeat(" ", 200) + "x", strings.Repeat("x", 250), "a\r.\r\n.\n..", "\r", ".", strings.Repeat("x y", 80)} {
		for _, subject := range []string{text, "subject"} {
			for _, mailbox := range []string{"n <a@example.org>", text + " <a@example.org>", text} {
				f.Add(marshal(map[string]any{"from": mailbox, "to": []string{mailbox}, "subject": subject, "text": text,
					"attachments": []map[string]any{{"name": subject, "content": []byte(text)}}}))
				f.Add(marshal(map[string]any{"from": mailbox, "to": []string{mailbox}, "subject": subject, "html": text}))
			}
		}
	}
	f.Add(whole(f))
	const rest = `"from":"a@example.org","to":["b@example.org","c@example.org"],"subject":"s","text":"t"}`
	for _, first := range []string{`"to":["eve@example.org"],`, `"subject":"s\r\nBcc: eve@example.org",`, `"From":"eve@example.org",`,
		`"attachments":[{"name":"a","type":"a/b\r\nX: y\r\n\r\n\r.\r\n","content":""}],"attachments":[{"name":"a","content":""}],`,
		`"attachments":[{"name":"a","content":"","type":"text/html","Type":"a/b\r\nX: y"}],`} {
		f.Add([]byte(`{` + first + rest))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := email.Parse(body, email.Limits{Bytes: 1 << 20, Recipients: 5})
		if err != nil {
			if !errors.Is(err, email.ErrRefused) {
				t.Fatal(err)
			}
			return
		}
		var meant intended
		if err := json.Unmarshal(body, &meant); err != nil {
			t.Fatalf("%v\n%s", err, body)
		}
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		text, err := e.Compose(id, at)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(text), "\r\n") {
			if len(line) > 998 || strings.ContainsAny(line, "\r\n\x00") {
				t.Errorf("line %q", line)
			}
		}
		m, err := mail.ReadMessage(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		wantHeaders(t, m.Header, &meant)
		_, domain, _ := strings.Cut(addresses([]string{meant.From})[0], "@")
		if got, want := m.Header.Get("Message-Id"), "<"+id+"@"+domain+">"; got != want {
			t.Errorf("message ID %s, want %s", got, want)
		}
		if date, err := m.Header.Date(); err != nil || !date.Equal(at) {
			t.Errorf("date %v, %v", date, err)
		}
		if got := addresses(m.Header["To"]); !slices.Equal(got, e.Recipients()) {
			t.Errorf("the envelope's recipients are %q, the header's %q", e.Recipients(), got)
		}
		wantParts(t, m, &meant)
		if t.Failed() {
			t.Logf("%s\n%s", body, text)
		}
	})
}

// wantHeaders checks that an e-mail has its headers, each once, and no others.
func wantHeaders(t *testing.T, headers mail.Header, meant *intended) {
	t.Helper()
	want := []string{"Content-Type", "Date", "From", "Message-Id", "Mime-Version", "Subject", "To"}
	if !strings.HasPrefix(headers.Get("Content-Type"), "multipart/") {
		want = slices.Insert(want, 0, "Content-Transfer-Encoding")
	}
	if names := slices.Sorted(maps.Keys(headers)); !slices.Equal(names, want) {
		t.Errorf("headers %q, want %q", names, want)
	}
	for name, values := range headers {
		if len(values) != 1 {
			t.Errorf("header %s: %q", name, values)
		}
	}
	if subject, err := new(mime.WordDecoder).DecodeHeader(headers.Get("Subject")); err != nil || subject != meant.Subject {
		t.Errorf("subject %q, %v; want %q", subject, err, meant.Subject)
	}
	if from := addresses(headers["From"]); !slices.Equal(from, addresses([]string{meant.From})) {
		t.Errorf("from %q, want %q", from, meant.From)
	}
	if to := addresses(headers["To"]); !slices.Equal(to, addresses(meant.To)) {
		t.Errorf("to %q, want %q", to, meant.To)
	}
	for _, name := range []string{"From", "To"} {
		got, want := names(headers[name]), names(meant.To)
		if name == "From" {
			want = names([]string{meant.From})
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: names %q, want %q", name, got, want)
		}
	}
}

// list returns the addresses in lists of addresses. A list that cannot be parsed becomes "?".
func list(lists []string) (all []*mail.Address) {
	for _, list := range lists {
		addresses, err := mail.ParseAddressList(list)
		if err != nil {
			addresses = []*mail.Address{{Address: "?"}}
		}
		all = append(all, addresses...)
	}
	return all
}

func addresses(lists []string) (all []string) {
	for _, a := range list(lists) {
		all = append(all, a.Address)
	}
	return all
}

func names(lists []string) (all []string) {
	for _, a := range list(lists) {
		all = append(all, strings.Join(strings.Fields(a.Name), " "))
	}
	return all
}

// A leaf is a part that has no parts.
type leaf struct {
	header  textproto.MIMEHeader
	content string
}

func leaves(t *testing.T, header textproto.MIMEHeader, body io.Reader) (all []leaf) {
	t.Helper()
	if strings.HasPrefix(header.Get("Content-Type"), "multipart/") {
		for _, p := range parts(t, header.Get("Content-Type"), body) {
			all = append(all, leaves(t, textproto.MIMEHeader(p.Header), bytes.NewReader(p.content))...)
		}
		return all
	}
	switch encoding := header.Get("Content-Transfer-Encoding"); encoding {
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	default:
		t.Errorf("encoding %q", encoding)
	}
	content, err := io.ReadAll(body)
	if err != nil {
		t.Error(err)
	}
	return []leaf{{header, string(content)}}
}

// lines returns a text with all ends of lines normalized to LF.
func lines(text string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
}

// special turns a file's name into its name in an e-mail.
var special = strings.NewReplacer("\"", "_", "/", "_", ":", "_", "<", "_", ">", "_", "?", "_", "\\", "_", "|", "_")

func wantParts(t *testing.T, m *mail.Message, meant *intended) {
	t.Helper()
	all := leaves(t, textproto.MIMEHeader(m.Header), m.Body)
	var want []leaf
	if meant.HTML == "" || meant.Text != "" {
		want = append(want, leaf{textproto.MIMEHeader{"Content-Type": {"text/plain"}}, meant.Text})
	}
	if meant.HTML != "" {
		want = append(want, leaf{textproto.MIMEHeader{"Content-Type": {"text/html"}}, meant.HTML})
	}
	for _, a := range meant.Attachments {
		if a.Type == "" {
			a.Type = "application/octet-stream"
		}
		want = append(want, leaf{textproto.MIMEHeader{"Content-Type": {a.Type}, "Name": {a.Name}}, string(a.Content)})
	}
	if len(all) != len(want) {
		t.Fatalf("%d parts, want %d", len(all), len(want))
	}
	for i, got := range all {
		kind, _, err := mime.ParseMediaType(got.header.Get("Content-Type"))
		if wanted := strings.ToLower(want[i].header.Get("Content-Type")); err != nil || kind != wanted {
			t.Errorf("part %d is %s, %v; want %s", i, kind, err, wanted)
		}
		_, named := want[i].header["Name"]
		wantNames := []string{"Content-Transfer-Encoding", "Content-Type"}
		if named {
			wantNames = slices.Insert(wantNames, 0, "Content-Disposition")
		} else {
			got.content, want[i].content = strings.TrimSuffix(lines(got.content), "\n"), strings.TrimSuffix(lines(want[i].content), "\n")
		}
		for header, param := range map[string]string{"Content-Type": "name", "Content-Disposition": "filename"} {
			_, params, err := mime.ParseMediaType(got.header.Get(header))
			name, _ := new(mime.WordDecoder).DecodeHeader(params[param])
			if wanted := special.Replace(want[i].header.Get("Name")); named && (err != nil || name != wanted) {
				t.Errorf("part %d has the name %q in %s, %v; want %q", i, name, header, err, wanted)
			}
		}
		if headers := slices.Sorted(maps.Keys(got.header)); named && !slices.Equal(headers, wantNames) {
			t.Errorf("part %d has the headers %q, want %q", i, headers, wantNames)
		}
		if got.content != want[i].content {
			t.Errorf("part %d is %q, want %q", i, got.content, want[i].content)
		}
	}
}

package email_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/email"
)

var limits = email.Limits{Bytes: 4096, Recipients: 3}

const id = "01936f5e-7b1c-7cc0-9a3b-0a1b2c3d4e5f"

func TestAnInvalidEmailIsRefusedWithThePlaceAndWithoutTheValue(t *testing.T) {
	const tail = `,"to":["a@example.org"],"subject":"s3cret","text":"s3cret"}`
	subject := func(s string) string {
		return `{"from":"a@example.org","to":["a@example.org"],"text":"x","subject":"` + s + `"}`
	}
	from := func(s string) string { return `{"from":` + s + tail }
	to := func(s string) string {
		return `{"from":"a@example.org","subject":"x","text":"x","to":` + s + `}`
	}
	attachment := func(s string) string {
		return `{"from":"a@example.org","to":["a@example.org"],"subject":"x","text":"x","attachments":[` + s + `]}`
	}
	for _, c := range []struct{ name, body, want string }{
		{"no object", `["s3cret"]`, "/: is a array, not a object"},
		{"more behind it", subject("x") + "{}", "not JSON"},
		{"not UTF-8", subject("\xff"), "not UTF-8"},
		{"no sender", `{"to":["s3cret@example.org"],"subject":"x","text":"x"}`, `/: ["from"] is missing`},
		{"no body", `{"from":"a@example.org","to":["a@example.org"],"subject":"x"}`, `"text" or "html" is missing`},
		{"unknown field", `{"bcc":"s3cret","from":"a@example.org"` + tail, `/: ["bcc"] is unknown`},
		{"field in capitals", `{"Html":"s3cret","from":"a@example.org"` + tail, `["Html"] is unknown`},
		{"field twice", `{"from":"s3cret@example.org","from":"b@example.org"` + tail, `/: "from" occurs twice`},
		{"field twice, by an escape", `{"from":"s3cret@example.org","\u0066rom":"b@example.org"` + tail, `/: "from" occurs twice`},
		{"field twice, once in capitals", `{"From":"s3cret@example.org","from":"b@example.org"` + tail, `/: "from" occurs twice`},
		{"field twice, once with a long s", `{"ſubject":"s3cret","from":"b@example.org"` + tail, `/: "subject" occurs twice`},
		{"field twice in an attachment", attachment(`{"name":"a","Name":"s3cret","content":""}`), `/attachments/0/: "Name" occurs twice`},
		{"attachments twice", subject(`x","attachments":[{"name":"s3cret","type":"a/b\r\nBcc: eve@x.org","content":""}],"attachments":[{"name":"a","content":""}],"html":"`), `/: "attachments" occurs twice`},
		{"many fields", `{` + many(`"s3cret%d":1,`, 65) + `"from":"a@example.org"` + tail, `more than 64 fields`},
		{"field with a long name", `{"` + strings.Repeat("s3cret", 100) + `":1,"from":"a@example.org"` + tail, `name of more than 64 bytes`},
		{"nested", strings.Repeat("[", 1000), "nested more than 16 deep"},
		{"cut short", `{"from":"s3cret`, "not JSON: unexpected EOF"},
		{"too long", subject(strings.Repeat("x", 4096)), "are more than the limit of 4096"},

		{"line feed in the subject", subject(`s3cret\nBcc: eve@example.org`), `/subject: breaks the schema's "pattern"`},
		{"carriage return in the subject", subject(`s3cret\rBcc: eve@example.org`), "/subject"},
		{"NUL in the subject", subject(`s3cret\u0000`), "/subject"},
		{"next line in the subject", subject(`s3cret\u0085`), "/subject"},
		{"line separator in the subject", subject(`s3cret\u2028`), "/subject"},
		{"long subject", subject(strings.Repeat("x", 256)), `/subject: breaks the schema's "maxLength"`},

		{"line feed in the sender's name", from(`"s3cret\nBcc: eve@example.org <a@example.org>"`), "/from"},
		{"line feed in an encoded name", from(`"=?utf-8?q?s3cret=0D=0ABcc?= <a@example.org>"`), "/from: a control character in the name"},
		{"no address", from(`"s3cret"`), "/from: not a mail address"},
		{"quoted local part", from(`"\"s3cret> x\"@example.org"`), "/from: not a plain ASCII mail address"},
		{"address with an address literal", from(`"s3cret@[127.0.0.1]"`), "/from: not a plain ASCII mail address"},
		{"address that is not ASCII", from(`"s3crét@example.org"`), "/from: not a plain ASCII mail address"},
		{"domain that looks like an option", from(`"s3cret@-example.org"`), "/from: not a plain ASCII mail address"},
		{"long address", from(`"a@` + strings.Repeat("s3cret.", 40) + `org"`), "/from"},

		{"no recipient", to(`[]`), `/to: breaks the schema's "minItems"`},
		{"a text", to(`"s3cret@example.org"`), "/to: is a string, not a array"},
		{"many", to(`["a@x.org","b@x.org","c@x.org","s3cret@x.org"]`), "/to: 4 recipients are more than the limit of 3"},
		{"twice", to(`["s3cret@x.org","S <s3cret@x.org>"]`), "/to/1: the same address again"},
		{"a bad one", to(`["a@x.org","s3cret"]`), "/to/1: not a mail address"},

		{"attachment without content", attachment(`{"name":"s3cret"}`), `/attachments/0: ["content"] is missing`},
		{"attachment not in base64", attachment(`{"name":"a","content":"s3cret!"}`), "/attachments"},
		{"line feed in its name", attachment(`{"name":"s3cret\n","content":""}`), "/attachments/0/name"},
		{"line feed in its type", attachment(`{"name":"a","type":"s3cret/x\r\nBcc: eve@example.org","content":""}`), "/attachments/0/type"},
		{"parameter in its type", attachment(`{"name":"a","type":"text/plain; s3cret=1","content":""}`), "/attachments/0/type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := email.Parse([]byte(c.body), limits)
			if !errors.Is(err, email.ErrRefused) {
				t.Fatalf("not refused: %v", err)
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3c") {
				t.Errorf("%v; want %s", err, c.want)
			}
		})
	}
}

func TestAddressesAreAllowedByPatterns(t *testing.T) {
	for _, c := range []struct {
		patterns, address string
		allowed           bool
	}{
		{"", "a@x.org", true},
		{"*", "a@x.org", true},
		{"*@x.org", "A@X.ORG", true},
		{"*@x.org", "a@x.org.evil.example", false},
		{"*@x.org", "a@y.x.org", false},
		{"*@*.x.org", "a@y.x.org", true},
		{"a*@x.org,b@x.org", "b@x.org", true},
		{"a@x.org", "aa@x.org", false},
		{"a*a@x.org", "a@x.org", false},
		{"*x.*x.*", "a@x.org", false},
		{"*x.*x.*", "a@x.x.org", true},
	} {
		allow := email.Limits{Bytes: 4096, Recipients: 2}
		if c.patterns != "" {
			allow.From = strings.Split(c.patterns, ",")
		}
		_, err := email.Parse([]byte(`{"from":"`+c.address+`","to":["z@y.org"],"subject":"x","text":"x"}`), allow)
		if (err == nil) != c.allowed || err != nil && (!errors.Is(err, email.ErrNotAllowed) || strings.Contains(err.Error(), "org")) {
			t.Errorf("%q by %q: %v", c.address, c.patterns, err)
		}
	}
}

func many(format string, n int) (all string) {
	for i := range n {
		all += fmt.Sprintf(format, i)
	}
	return all
}

// FuzzAnAcceptedEmailIsReadAsItWasMeant checks headers and contents.
func TestAttachmentsFollowTheAlternativesOfTheText(t *testing.T) {
	e, err := email.Parse(whole(t), limits)
	if err != nil {
		t.Fatal(err)
	}
	text, err := e.Compose(id, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m, err := mail.ReadMessage(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	mixed := parts(t, m.Header.Get("Content-Type"), m.Body)
	if len(mixed) != 2 || len(parts(t, mixed[0].Header.Get("Content-Type"), bytes.NewReader(mixed[0].content))) != 2 {
		t.Errorf("not two parts, the first with two alternatives:\n%s", text)
	}
}

// whole returns a body with every field.
func whole(t testing.TB) []byte {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"from": `"Shöp, Ltd." <shop@example.org>`, "to": []string{"ann@example.org", "Bob <bob+x@example.net>"},
		"subject": "Für Ann: 5 €", "text": "Thank you.\n.\nÄ", "html": "<p>Thank you.</p>",
		"attachments": []map[string]any{{"name": `a"b/ü.pdf`, "type": "application/pdf", "content": []byte("\x00\x01%PDF-\r\n.\r\n")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

type part struct {
	*multipart.Part
	content []byte
}

// parts reads all parts; NextPart would undo quoted-printable.
func parts(t *testing.T, contentType string, body io.Reader) []part {
	t.Helper()
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		t.Fatalf("%q: %v", contentType, err)
	}
	var all []part
	r := multipart.NewReader(body, params["boundary"])
	for {
		p, err := r.NextRawPart()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, part{p, content})
	}
}

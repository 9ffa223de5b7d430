// Package transport hands e-mails to a mail server by SMTP. The error of each failure says whether
// the e-mail was certainly not sent.
//
// The mail server accepts an e-mail by its answer to the line with a single dot that ends the text
// (RFC 5321, 4.2.5). So
//
//	moment                              an answer 4xx    an answer 5xx    no answer
//	connecting, TLS, login              ErrUnavailable   ErrUnavailable   ErrUnavailable
//	MAIL, RCPT, DATA                    ErrTemporary     ErrPermanent     ErrTemporary
//	text, before the dot                -                -                ErrTemporary
//	dot                                 ErrTemporary     ErrPermanent     ErrDoubtful
//
// ErrUnavailable, ErrTemporary and ErrPermanent mean that the e-mail was certainly not sent.
// ErrDoubtful means that the server may have accepted it: the dot may have been on its way when the
// connection ended or the time was up. A short text leaves together with its dot, so a connection
// that ends anywhere in a short text is doubtful; in a long text, only the last part is.
//
// An e-mail to several recipients goes to all or to none: if the server refuses one of them, it gets
// no text. A server that accepts a recipient and bounces the e-mail later is not noticed.
package transport

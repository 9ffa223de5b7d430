// Package transport hands e-mails to a mail server by SMTP, and says of each
// failure what is certain.
//
// The mail server takes an e-mail over with its answer to the line with a single
// dot that ends the text (RFC 5321, 4.2.5). So
//
//	moment                              an answer 4xx    an answer 5xx    no answer
//	connecting, TLS, login              ErrUnavailable   ErrUnavailable   ErrUnavailable
//	MAIL, RCPT, DATA                    ErrTemporary     ErrPermanent     ErrTemporary
//	text, before the dot                -                -                ErrTemporary
//	dot                                 ErrTemporary     ErrPermanent     ErrDoubtful
//
// ErrUnavailable, ErrTemporary and ErrPermanent mean that the e-mail was certainly
// not sent, and nobody has got it. ErrDoubtful means that the server may have taken
// it: the dot may have been on its way when the connection ended, or the time was
// up. A short text leaves together with its dot, so that a connection that ends
// anywhere in it is doubtful; of a long one the part before the dot is told apart.
//
// An e-mail to several recipients goes to all or to none: if the server refuses one
// of them, it gets no text. Servers that take a recipient and bounce it later are
// out of anybody's sight.
package transport

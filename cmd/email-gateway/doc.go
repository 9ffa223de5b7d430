// Email-gateway is an example of a receiver, meant to be run: it sends the e-mails of a queue
// through a mail server, each at most once, whichever process crashes. Its README describes its
// use, guarantees and limits. email-gateway -help lists its variables, and email-gateway schema
// prints the form of a message's body.
//
// # Outcomes
//
//	sent        the mail server has accepted the e-mail
//	duplicate   an earlier delivery has begun the e-mail, and ends as sent or doubtful
//	doubtful    the mail server may have accepted the e-mail: see below
//	refused     the message is no e-mail (the schema, the limits) or is too old, or the mail
//	            server refuses it for good (5xx): in the dead queue, with the reason
//	failed      EMAIL_ATTEMPTS times the mail server has refused it for now (4xx), or the connection
//	            has ended before the e-mail's last line: in the dead queue
//	handed_back in its own queue again: the mail server is away, or the gateway stops
//
// The dead queue's messages have the headers of any receiver's, such as x-bridge-dead-reason
// (failed or too-old) and -text. A replay (bridgectl dead replay) is handled as a new message.
//
// # Sent at most once
//
// An e-mail cannot be sent in a transaction. So each message has a row in the inbox and a row in
// the table email_gateway, written in this order:
//
//  1. the inbox: 'started' (AtMostOnce of package idempotency/pending)
//  2. email_gateway: 'sending'
//  3. the e-mail goes to the mail server
//  4. email_gateway: the result
//  5. the inbox: done
//
// If a gateway dies in between, the next one reads the row of email_gateway. If there is no
// 'sending', nothing was sent, and it sends the e-mail. If the row says 'sent', it only completes
// step 5. If the row says 'sending', the e-mail is doubtful. If step 4 failed and step 5 did not,
// the row says 'sending' although the e-mail was sent: settle corrects the row later.
//
// An e-mail is also doubtful if the connection ends between its last line, the line with a dot, and
// the mail server's answer: package transport has the table.
//
// A run sends only after it has changed the row to 'sending', and a row with 'sending', 'doubtful'
// or 'sent' refuses it. So of two runs of one e-mail only one sends, and a gateway that was frozen
// and taken for dead sends nothing twice. A doubtful e-mail is not sent again before an operator
// decides. A retry has the same Message-ID, so some mail servers and mailboxes drop the second
// e-mail.
package main

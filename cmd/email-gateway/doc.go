// Email-gateway is a receiver that one can run: it sends the e-mails of a queue through
// a mail server, each once at most, whatever crashes. email-gateway -help lists its
// configuration, and email-gateway schema prints the form of a message's body.
//
// # What becomes of a message
//
//	sent        the mail server has taken it over
//	duplicate   it was begun before, and is sent or doubtful, or will be
//	doubtful    nobody knows: see below
//	refused     no e-mail (the schema, the limits), too old, or the mail server's last
//	            word is no (5xx): in the dead queue, with the reason
//	failed      the mail server has said 'later' (4xx) EMAIL_ATTEMPTS times: in the
//	            dead queue
//	handed_back in its own queue again: the mail server is away, or the gateway stops
//
// The dead queue's messages have the headers x-bridge-dead-reason (malformed, not-allowed,
// refused, failed, too-old), -text and -at. Put back into the queue, they are tried as new.
//
// An e-mail to several recipients goes to all of them or to none.
//
// # Sent once at most
//
// An e-mail cannot be sent in a transaction. So its message is claimed in the inbox
// as 'started' (AtMostOnce of package idempotency/pending), then a row says
// 'sending', then the mail server gets it, then the row says what came of it, and at
// last the inbox that it is done. Of a gateway that dies in between, the next one
// knows by the row: before 'sending' nothing was sent, and it sends it; after 'sent'
// all is done. In between it is doubtful. A row that says 'sending' of what the inbox is
// done with, since the database did not take the row's last word, is settled later: it
// was sent.
//
// The other doubtful ones are those whose text and its end, a line with a dot, have
// left, without an answer of the mail server: package transport tells the moments.
//
// Of two runs of one e-mail only one gets past the row: a run begins only where the row says that
// nothing is under way and nothing was sent. So a gateway that was frozen, and taken for dead,
// sends nothing twice.
//
// What is doubtful is not sent again before an operator says so: doubtful list, and
// then doubtful sent or doubtful retry. It helps to look for the e-mail's Message-ID in the
// mail server's log: it is the message's ID with the sender's domain, also when the
// e-mail is sent once more, so that some mail servers and mailboxes drop the second.
//
// # What it keeps
//
// The table email_gateway has one row for each message: its ID, the recipients'
// addresses, the status, attempts, the last error and the times, for EMAIL_RETENTION, and
// for as long as the inbox is not done with the message.
// An e-mail itself is kept nowhere but in queues, unless it is doubtful: then the
// inbox has it until an operator has decided. Logs and metrics have no addresses, and
// nothing of an e-mail but its message's ID.
package main

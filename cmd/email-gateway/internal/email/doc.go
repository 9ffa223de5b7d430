// Package email turns a message's body into an e-mail: it checks the body against a published JSON
// Schema, refuses unsafe e-mails, and composes the MIME text.
//
//	{
//	  "from": "Shop <shop@example.org>",
//	  "to": ["ann@example.org"],
//	  "subject": "Your order",
//	  "text": "Thank you.",
//	  "html": "<p>Thank you.</p>",
//	  "attachments": [{"name": "order.pdf", "type": "application/pdf", "content": "JVBERi0="}]
//	}
//
// It refuses a body that breaks the schema, that has an unknown field or a field twice, or that
// exceeds the Limits; control characters in a header; addresses that are not plain ASCII; and the
// same recipient twice. The e-mail is made from the value that was checked against the schema. An
// error names the place in the body, and repeats no value of the message.
//
// A composed e-mail has exactly the headers that the message asks for. Its lines end with CR LF, and
// neither character occurs alone. In an attachment's name, _ replaces each character that is special
// to file systems.
package email

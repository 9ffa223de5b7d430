// Package email makes of a message's body an e-mail: it holds the body to a
// published JSON Schema, refuses what could not be sent safely, and composes the
// MIME text.
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
// Refused are a body that breaks the schema (what it does not name is not
// ignored), control characters in a header, addresses that are not plain ASCII,
// the same recipient twice, and what exceeds the Limits. No error repeats what
// the message says: it names the place.
package email

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
// Refused are: a body that breaks the schema, also by a field that the schema does not name or
// that occurs twice; control characters in a header; addresses that are not plain ASCII; the
// same recipient twice; and a body that exceeds the Limits. The e-mail is made from the value
// that the schema was checked on. No error repeats a value of the message: it names the place.
//
// A composed e-mail has exactly the headers that the message asks for. Its lines end with CR LF,
// and contain neither by itself. An attachment's name has _ where it had a character that is
// special to file systems.
package email

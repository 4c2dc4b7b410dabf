"""A message as a mail: plain text, and beside it HTML that looks like the page of matches."""

from __future__ import annotations

import io
from datetime import UTC, timedelta
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime

from rich.console import Console

from feeds.dates import EPOCH
from mmqjp.present.groups import Spool
from mmqjp.present.page import write_page
from mmqjp.present.report import Report, counted
from mmqjp.present.terminal import print_report
from mmqjp.present.times import Clock
from mmqjp.sinks.message import Message
from mmqjp.sinks.options import MailOptions

WIDTH = 76
"""The width of the plain text, in columns."""

# Lines of at most 76 bytes, in ASCII, so that any server takes them.
_POLICY = policy.SMTP.clone(max_line_length=76, cte_type="7bit")


def digest(message: Message, options: MailOptions) -> bytes:
    """Returns a message as a mail, with the line ends of SMTP. It is the same bytes in every attempt."""
    total, page = len(message.matches) + message.more, io.BytesIO()
    text = "This is a test: the mails of this sink arrive here.\n"
    with Spool().add(message.matches) as spool:
        report = Report(spool.groups(), total, Clock(options.zone or UTC), which="first")
        if total:
            text = _text(report)
            write_page(report, page)
    mail = EmailMessage(_POLICY)
    mail["From"] = Address(addr_spec=options.sender)
    mail["To"] = [Address(addr_spec=one) for one in options.to]
    mail["Subject"] = f"{message.sink}: {counted(total)}" if total else f"{message.sink}: a test"
    mail["Date"] = format_datetime(EPOCH + timedelta(microseconds=message.committed_at))
    mail["Message-ID"] = message_id(message, options.sender)
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text, cte="quoted-printable")
    if total:
        mail.add_alternative(page.getvalue().decode(), subtype="html", cte="quoted-printable")
        mail.set_boundary(f"={message.id}=")
    return mail.as_bytes()


def message_id(message: Message, sender: str) -> str:
    """Returns the Message-ID. It is made of the sink, of the numbers that the message covers and of their outputs."""
    return f"<{message.sink}.{message.first}-{message.last}.{message.id}@{sender.rpartition('@')[2]}>"


def _text(report: Report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=WIDTH, color_system=None, highlight=False, emoji=False))
    return out.getvalue()

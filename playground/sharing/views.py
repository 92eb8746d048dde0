"""``/s/<token>``: the page, its embed form and its preview image. A link that is over answers 410 with nothing of its content."""

from collections.abc import Callable
from functools import wraps

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.views.decorators.http import require_safe

from playground.exceptions import LinkGone, NotFound
from playground.middleware import POLICY
from playground.sharing import previews, selectors, services
from playground.sharing.models import ShareLink

View = Callable[[HttpRequest, ShareLink], HttpResponse]


def of_live_link(view: View) -> Callable[[HttpRequest, str], HttpResponse]:
    """Opens the link for the view; nothing of it is indexed, kept by caches or told to other sites."""

    @require_safe
    @wraps(view)
    def opened(request: HttpRequest, token: str) -> HttpResponse:
        try:
            response = view(request, selectors.link_open(token))
        except LinkGone:
            response = render(request, "sharing/gone.html", status=410)
        except NotFound:
            response = render(request, "sharing/gone.html", status=404)
        response.headers["X-Robots-Tag"] = "noindex, nofollow, noarchive"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"
        return response

    return opened


def framed_anywhere(view: Callable) -> Callable:
    """Also the word that it is gone is seen in the frame."""

    @wraps(view)
    def framed(request: HttpRequest, token: str) -> HttpResponse:
        response = view(request, token)
        policy = POLICY.format(nonce=request.csp_nonce).replace("frame-ancestors 'none'", "frame-ancestors *")
        response.headers["Content-Security-Policy"] = policy
        return response

    return framed


@of_live_link
def demo(request: HttpRequest, link: ShareLink) -> HttpResponse:
    get_token(request)
    _count(request, link)
    return render(request, "sharing/demo.html", _context(request, link))


@framed_anywhere
@of_live_link
def embed(request: HttpRequest, link: ShareLink) -> HttpResponse:
    """Instrument, transport and code only, for a frame on any site, if the owner allows that."""
    if not link.allow_embed:
        raise NotFound("This demo cannot be embedded.")
    _count(request, link)
    return render(request, "sharing/demo.html", _context(request, link, embed=True))


@of_live_link
def preview(request: HttpRequest, link: ShareLink) -> HttpResponse:
    return HttpResponse(previews.preview_png(link), content_type="image/png")


def _count(request: HttpRequest, link: ShareLink) -> None:
    if request.method == "GET":  # HEAD is a program that looks whether it is there
        services.view_count(link=link, viewer=request.owner)


def links_page(request: HttpRequest) -> HttpResponse:
    """All links of this user or browser."""
    get_token(request)
    return render(request, "sharing/links.html", {"boot": page_boot(request)})


def page_boot(request: HttpRequest) -> dict:
    """Who sees a page of the application."""
    user = request.owner.user
    return {"user": {"name": user.email or user.get_username(), "staff": user.is_staff} if user else None}


def _context(request: HttpRequest, link: ShareLink, embed: bool = False) -> dict:
    return {
        "link": link,
        "recorded": bool(link.snapshot["turns"][-1]["answer"]["trace"]),
        "boot": {**selectors.public_snapshot(link), "embed": embed},
        "page_url": request.build_absolute_uri(f"/s/{link.token}"),
        "image_url": request.build_absolute_uri(f"/s/{link.token}/preview.png?v={link.version}"),
    }

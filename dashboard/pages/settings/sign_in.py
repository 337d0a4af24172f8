"""Sign-in with a password, or with a link that works once.

Attempts with a password are limited for ten minutes: for a name from one address, for a name, and for an address. The
counters are in the memory of the web process: they work without Redis, and a restart resets them.
"""

from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import SESSION_KEY, login, logout
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.core import signing
from django.core.cache import cache
from django.db import OperationalError, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from rollouts.storage import is_disk_full

SALT = "rolloutdeck.sign-in"
LINK_SECONDS = 24 * 60 * 60
THROTTLE_SECONDS = 600
MAX_TOGETHER, MAX_BY_NAME, MAX_BY_ADDRESS = 10, 50, 50


class SignInView(LoginView):
    """With name and password, limited by `count_and_allow_login`."""

    template_name = "settings/sign_in.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        name = request.POST.get("username", "")
        if count_and_allow_login(name, get_client_address(request)):
            return super().post(request, *args, **kwargs)
        error = _("Too many failed sign-in attempts. Try again in ten minutes.")
        form = self.get_form_class()(request, initial={"username": name})  # not bound, so no query for the user
        response = self.render_to_response(self.get_context_data(form=form, error=error), status=429)
        response["Retry-After"] = str(THROTTLE_SECONDS)
        return response

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        record_login_success(self.request.POST.get("username", ""), get_client_address(self.request))
        try:
            return super().form_valid(form)
        except OperationalError as error:
            # On a full disk the session is in the cookie, and only the time of the sign-in is not saved.
            if is_disk_full(error) and SESSION_KEY in self.request.session:
                return redirect(self.get_success_url())
            raise


class CounterKeys(NamedTuple):
    """The cache keys of the three counts."""

    together: str
    by_name: str
    by_address: str


def build_counter_keys(name: str, address: str) -> CounterKeys:
    """A name may have any length and characters; upper and lower case are the same."""
    name = name.strip().casefold()
    counted = (f"both {name}\0{address}", f"name {name}", f"address {address}")
    return CounterKeys(*(f"sign-in-{sha256(key.encode(errors='replace')).hexdigest()}" for key in counted))


def count_and_allow_login(name: str, address: str) -> bool:
    """Counts an attempt before its password is checked, so parallel ones count too. False if there are too many."""
    limits = (MAX_TOGETHER, MAX_BY_NAME, MAX_BY_ADDRESS)
    counts = [count_login(key) for key in build_counter_keys(name, address)]
    return all(count <= limit for count, limit in zip(counts, limits, strict=True))


def count_login(key: str) -> int:
    """The count restarts ten minutes after its first attempt."""
    cache.add(key, 0, THROTTLE_SECONDS)
    try:
        return cache.incr(key)
    except ValueError:  # the key has just expired
        return 1


def record_login_success(name: str, address: str) -> None:
    """Resets the counts of the name. Lowers the address's count by one: earlier failures may be for other names."""
    keys = build_counter_keys(name, address)
    cache.delete_many([keys.together, keys.by_name])
    with suppress(ValueError):
        cache.decr(keys.by_address)


def get_client_address(request: HttpRequest) -> str:
    """Behind a trusted proxy, uvicorn has set it to the address that the proxy reports."""
    return str(request.META.get("REMOTE_ADDR", ""))


sign_in_page = SignInView.as_view()


def create_sign_in_link(user: User) -> str:
    """A link that works once within a day: it contains the time of the last sign-in, which its use changes."""
    secret = signing.dumps([user.pk, format_last_sign_in(user)], salt=SALT)
    return f"{settings.PUBLIC_URL}/sign-in/link/?{urlencode({'t': secret})}"


def format_last_sign_in(user: User) -> str:
    return user.last_login.isoformat() if user.last_login else ""


def find_link_user(secret: str, users: QuerySet[User]) -> User | None:
    """The user that the link signs in; None if it is invalid, expired or used."""
    try:
        pk, last_sign_in = signing.loads(secret, salt=SALT, max_age=LINK_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    user = users.filter(pk=pk, is_active=True).first()
    return user if user and format_last_sign_in(user) == last_sign_in else None


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in_link_page(request: HttpRequest) -> HttpResponse:
    """A page with a button that signs in. A GET must not use up the link: chats and mail filters open links."""
    if request.method == "POST":
        return sign_in_with_link(request, request.POST.get("t", ""))
    secret = request.GET.get("t", "")
    user = find_link_user(secret, User.objects.all())
    if user is None:
        return render_invalid_link(request)
    return render(request, "settings/sign_in_link.html", {"owner": user, "secret": secret})


def sign_in_with_link(request: HttpRequest, secret: str) -> HttpResponse:
    with transaction.atomic():  # of two requests at the same time, only one succeeds
        user = find_link_user(secret, User.objects.select_for_update())
        if user:
            login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    if user is None:
        return render_invalid_link(request)
    if not user.has_usable_password():
        messages.info(request, _("You are signed in. Set a password in Settings so that you can sign in again."))
    return redirect("runs")


def render_invalid_link(request: HttpRequest) -> HttpResponse:
    """Redirects a signed-in user to the runs."""
    if request.user.is_authenticated:
        return redirect("runs")
    error = _("This link is invalid, expired or already used. Sign in, or ask for a new link.")
    return render(request, "settings/sign_in.html", {"error": error}, status=403)


@require_POST
def sign_out_view(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("sign-in")

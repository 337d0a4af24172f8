"""Sign-in with a password, or with a link that works once; then with a code, if the user has a second factor."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import SESSION_KEY, login, logout
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.db import OperationalError, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.pages.sign_in.code_step import (
    build_step_token,
    get_wrong_code_text,
    load_step_token,
    render_code_step,
)
from dashboard.sign_in import (
    THROTTLE_SECONDS,
    count_and_allow_login,
    find_link_user,
    get_client_address,
    has_second_factor,
    record_login_success,
    verify_code,
)
from rollouts.models import Project
from rollouts.queues import has_items_to_answer
from rollouts.storage import is_disk_full

BACKEND = "django.contrib.auth.backends.ModelBackend"


class SignInView(LoginView):
    """With name and password, limited by `count_and_allow_login`."""

    template_name = "sign_in/page.html"
    redirect_authenticated_user = True

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        return super().get_context_data(**build_sign_in_context(self.request), **more)

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
        user: Any = form.get_user()
        if not settings.PASSWORD_SIGN_IN and not user.is_superuser:
            error = _("Passwords are switched off on this server, except for server admins.")
            response = self.render_to_response(self.get_context_data(form=self.get_form_class()(), error=error))
            response.status_code = 403
            return response
        if has_second_factor(user):  # the attempt stays counted until the code is right
            next_url = self.get_redirect_url() or find_landing_url(user)
            return render_code_step(self.request, build_step_token(user, next_url, attempts=2))
        record_login_success(self.request.POST.get("username", ""), get_client_address(self.request))
        try:
            return super().form_valid(form)
        except OperationalError as error:
            # On a full disk the session is in the cookie, and only the time of the sign-in is not saved.
            if is_disk_full(error) and SESSION_KEY in self.request.session:
                return redirect(self.get_success_url())
            raise

    def get_success_url(self) -> str:
        """Never this page, which would lead a signed-in user to itself without end."""
        url = super().get_success_url()
        return self.get_default_redirect_url() if url == self.request.path else url

    def get_default_redirect_url(self) -> str:
        user: Any = self.request.user
        return find_landing_url(user) if user.is_authenticated else super().get_default_redirect_url()


def find_landing_url(user: User) -> str:
    """The page after signing in, if none was asked for: their queues for people who have items to answer."""
    projects = Project.objects.visible_to(user)
    return resolve_url("queues" if has_items_to_answer(user, projects) else "runs")


def build_sign_in_context(request: HttpRequest) -> dict[str, Any]:
    """`openid`: the provider, None if there is none. `shows_password`: whether the page has the form for a password;
    people without a provider could not sign in otherwise, and server admins open it with a link."""
    has_other = settings.OPENID is not None or settings.TRUSTED_PROXY is not None
    is_asked_for = "password" in request.GET or request.method == "POST"
    return {"openid": settings.OPENID, "shows_password": settings.PASSWORD_SIGN_IN or not has_other or is_asked_for}


def render_sign_in_error(request: HttpRequest, error: str, status: int) -> HttpResponse:
    context = {**build_sign_in_context(request), "error": error}
    return render(request, "sign_in/page.html", context, status=status)


sign_in_page = SignInView.as_view()


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
    return render(request, "sign_in/link.html", {"owner": user, "secret": secret})


def sign_in_with_link(request: HttpRequest, secret: str) -> HttpResponse:
    with transaction.atomic():  # of two requests at the same time, only one succeeds
        user = find_link_user(secret, User.objects.select_for_update())
        if user:
            needs_code = has_second_factor(user)
            if not needs_code:
                login(request, user, backend=BACKEND)
    if user is None:
        return render_invalid_link(request)
    if needs_code:  # the link stays valid until then
        return render_code_step(request, build_step_token(user, find_landing_url(user), attempts=1))
    if not user.has_usable_password():
        messages.info(request, _("You are signed in. Set a password in Settings so that you can sign in again."))
    return redirect(find_landing_url(user))


def render_invalid_link(request: HttpRequest) -> HttpResponse:
    """Redirects a signed-in user to the runs."""
    if request.user.is_authenticated:
        return redirect("runs")
    error = _("This link is invalid, expired or already used. Sign in, or ask for a new link.")
    return render_sign_in_error(request, error, 403)


@never_cache
@sensitive_post_parameters()
@require_POST
def sign_in_code_view(request: HttpRequest) -> HttpResponse:
    """The second step: `code`, and `t` from the first step."""
    token = request.POST.get("t", "")
    step = load_step_token(token)
    if step is None:
        error = _("The first step is too long ago. Sign in again.")
        return render_sign_in_error(request, error, 403)
    user, next_url, attempts = step
    name, address = user.get_username(), get_client_address(request)
    if not count_and_allow_login(name, address):
        error = _("Too many failed sign-in attempts. Try again in ten minutes.")
        response = render_code_step(request, token, error=error, status=429)
        response["Retry-After"] = str(THROTTLE_SECONDS)
        return response
    if not verify_code(user, request.POST.get("code", "")):
        return render_code_step(request, token, error=get_wrong_code_text(), status=400)
    record_login_success(name, address, attempts)
    login(request, user, backend=BACKEND)
    return redirect(next_url)


@require_POST
def sign_out_view(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("sign-in")

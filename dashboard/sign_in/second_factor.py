"""The second factor of a sign-in: six digits of an authenticator app (TOTP), or a recovery code.

django-otp stores the app's secret and the recovery codes, and refuses a code that was used. Each wrong code doubles the
time in which no other is accepted. API tokens need no second factor.
"""

from __future__ import annotations

import re
import secrets
from base64 import b32encode
from typing import TYPE_CHECKING

from django.core import signing
from django.db import transaction

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django_otp.plugins.otp_static.models import StaticDevice
    from django_otp.plugins.otp_totp.models import TOTPDevice

RECOVERY_CODE_COUNT = 10
RECOVERY_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # without letters that look like others
RECOVERY_CODE_CHARS = 10  # 49 random bits
APP_CODE = re.compile(r"[0-9]{6}")
SETUP_SALT = "rolloutdeck.second-factor"
SETUP_SECONDS = 60 * 60  # in which a new secret must be confirmed
NAME = "authenticator app"


def get_devices(user: User) -> tuple[TOTPDevice | None, StaticDevice | None]:
    """The app and the recovery codes of a user, locked until the transaction ends."""
    from django_otp.plugins.otp_static.models import StaticDevice  # models can be imported only after the settings
    from django_otp.plugins.otp_totp.models import TOTPDevice

    app = TOTPDevice.objects.select_for_update().filter(user=user, confirmed=True).first()
    return app, StaticDevice.objects.select_for_update().filter(user=user, confirmed=True).first()


def has_second_factor(user: User) -> bool:
    from django_otp.plugins.otp_totp.models import TOTPDevice

    return bool(TOTPDevice.objects.filter(user=user, confirmed=True).exists())


def count_recovery_codes(user: User) -> int:
    """Those that were not used."""
    from django_otp.plugins.otp_static.models import StaticToken

    return int(StaticToken.objects.filter(device__user=user).count())


def verify_code(user: User, code: str) -> bool:
    """Whether it is the app's code of this moment or an unused recovery code. It cannot be used again."""
    code = re.sub(r"[\s-]", "", code).lower()
    with transaction.atomic():
        app, recovery = get_devices(user)
        if APP_CODE.fullmatch(code):
            return bool(app and app.verify_token(code))
        return bool(code and recovery and recovery.verify_token(code[:16]))


def create_setup(user: User) -> str:
    """A new secret for an app, signed. Nothing is stored until the user has confirmed it with a code."""
    return signing.dumps([user.pk, secrets.token_hex(20)], salt=SETUP_SALT)


def load_setup(user: User, setup: str) -> TOTPDevice | None:
    """The unsaved device of `create_setup`; None if the text is invalid, older than an hour or of another user."""
    from django_otp.plugins.otp_totp.models import TOTPDevice

    try:
        pk, key = signing.loads(setup, salt=SETUP_SALT, max_age=SETUP_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    return TOTPDevice(user=user, key=key, name=NAME) if pk == user.pk else None


def format_secret(device: TOTPDevice) -> str:
    """The secret in groups of four letters, as apps accept it by hand."""
    text = b32encode(device.bin_key).decode()
    return " ".join(text[start : start + 4] for start in range(0, len(text), 4))


def enable_second_factor(device: TOTPDevice, code: str) -> list[str]:
    """Stores the device if the code is its code of this moment. Returns the recovery codes; none if it is not."""
    from django_otp.oath import TOTP

    with transaction.atomic():
        totp = TOTP(device.bin_key, device.step, device.t0, device.digits)
        code = re.sub(r"\s", "", code)
        if not APP_CODE.fullmatch(code) or not totp.verify(int(code), device.tolerance):
            return []
        remove_second_factor(device.user)
        device.last_t, device.drift = totp.t(), totp.drift  # this code cannot be used to sign in
        device.save()
        return replace_recovery_codes(device.user)


def replace_recovery_codes(user: User) -> list[str]:
    """New codes; the previous ones are not valid any more."""
    from django_otp.plugins.otp_static.models import StaticDevice, StaticToken

    codes = [
        "".join(secrets.choice(RECOVERY_ALPHABET) for _ in range(RECOVERY_CODE_CHARS))
        for _ in range(RECOVERY_CODE_COUNT)
    ]
    with transaction.atomic():
        StaticDevice.objects.filter(user=user).delete()
        device = StaticDevice.objects.create(user=user, name="recovery codes")
        StaticToken.objects.bulk_create(StaticToken(device=device, token=code) for code in codes)
    return [f"{code[:5]}-{code[5:]}" for code in codes]


def remove_second_factor(user: User) -> bool:
    """Returns whether there was one."""
    from django_otp.plugins.otp_static.models import StaticDevice
    from django_otp.plugins.otp_totp.models import TOTPDevice

    with transaction.atomic():
        had = has_second_factor(user)
        TOTPDevice.objects.filter(user=user).delete()
        StaticDevice.objects.filter(user=user).delete()
    return had

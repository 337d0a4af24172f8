"""Django's settings. All environment variables are read in the first block and listed in `.env.example`."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import environ
from pythonjsonlogger.core import RESERVED_ATTRS

from dashboard.sign_in_settings import (
    parse_group_roles,
    read_check_seconds,
    read_openid_settings,
    read_proxy_settings,
    read_switch,
)

BASE_DIR = Path(__file__).resolve().parent.parent

os.umask(0o077)  # of every server process, also without `rolloutdeck up`: data files are private

# --- environment ----------------------------------------------------------------------------------------------------
env = environ.Env()
if env.str("DJANGO_READ_DOT_ENV_FILE", "") != "off" and (BASE_DIR / ".env").exists():
    env.read_env(BASE_DIR / ".env")

DATA_DIR = Path(env.str("ROLLOUTDECK_DATA", "") or "~/.rolloutdeck/data").expanduser().absolute()
DATABASE_URL = env.str("DATABASE_URL", "") or f"sqlite:///{quote(str(DATA_DIR / 'db.sqlite3'))}"
STORAGE_URL = env.str("ROLLOUTDECK_STORAGE", "").rstrip("/")  # s3://bucket/prefix; "" is the data folder
CACHE_BYTES = int(env.str("ROLLOUTDECK_CACHE_BYTES", "") or 20_000_000_000)  # of copies of a bucket's files
REDIS_URL = env.str("REDIS_URL", "") or f"unix://{DATA_DIR / 'redis.sock'}"
# Limits of searches, see docs/operations.md.
MAX_QUERY_SECONDS = float(env.str("ROLLOUTDECK_MAX_QUERY_SECONDS", "") or 20.0)  # of all searches of one request
MAX_WORKER_QUERY_SECONDS = float(
    env.str("ROLLOUTDECK_MAX_WORKER_QUERY_SECONDS", "") or 600.0
)  # of a search in a worker
MAX_QUERY_MEMORY_MB = int(env.str("ROLLOUTDECK_MAX_QUERY_MEMORY_MB", "") or 1000)  # of one search
MAX_SCANS = int(env.str("ROLLOUTDECK_MAX_SCANS", "") or 4)  # at the same time
MAX_SCANS_PER_PERSON = int(env.str("ROLLOUTDECK_MAX_SCANS_PER_PERSON", "") or 2)
SHARE_SEARCH_SECONDS = float(env.str("ROLLOUTDECK_SHARE_SEARCH_SECONDS", "") or 0.3)  # then other machines help
SEARCH_HELP = "workers.dispatch.ask_for_help"  # asks workers to call `help_scan`; returns how many
MAX_SCAN_WAIT = float(env.str("ROLLOUTDECK_MAX_SCAN_WAIT", "") or 5.0)  # seconds for a place, then 429
MAX_TOKEN_REQUESTS = int(env.str("ROLLOUTDECK_MAX_TOKEN_REQUESTS", "") or 6000)  # of one token per minute; 0: no limit
MAX_WORKER_MEMORY_MB = int(env.str("ROLLOUTDECK_MAX_WORKER_MEMORY_MB", "") or 2000)  # of one process of a worker
LOG_FORMAT = env.str("ROLLOUTDECK_LOG_FORMAT", "") or "line"  # or json
METRICS_PORT = int(env.str("ROLLOUTDECK_METRICS_PORT", "") or 0)  # of a worker
# Sign-in by a provider or a proxy, see docs/sign-in.md. None: off.
OPENID = read_openid_settings(env.str)
TRUSTED_PROXY = read_proxy_settings(env.str)
GROUP_ROLES = parse_group_roles(env.str("ROLLOUTDECK_GROUP_ROLES", ""))
GROUP_CHECK_SECONDS = read_check_seconds(env.str)
PASSWORD_SIGN_IN = read_switch(env.str, "ROLLOUTDECK_PASSWORD_SIGN_IN")  # for people who are not server admins
PUBLIC_URL = (env.str("ROLLOUTDECK_PUBLIC_URL", "") or "http://127.0.0.1:8460").rstrip("/")


def read_or_create_secret(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:  # noqa: PTH123
                file.write(secrets.token_urlsafe(50))
            with suppress(FileExistsError):  # another process was faster
                os.link(temporary, path)
        finally:  # on a full disk no empty secret may stay
            temporary.unlink(missing_ok=True)
    return path.read_text()


SECRET_KEY = env.str("ROLLOUTDECK_SECRET_KEY", "") or read_or_create_secret(DATA_DIR / "secret-key")

# --- URL: the only place that knows scheme, host and prefix ---------------------------------------------------------
public = urlsplit(PUBLIC_URL)
PREFIX = public.path.rstrip("/")
FORCE_SCRIPT_NAME = PREFIX or None
public_host = public.hostname or "127.0.0.1"
ALLOWED_HOSTS = sorted({f"[{public_host}]" if ":" in public_host else public_host, "127.0.0.1", "localhost", "[::1]"})
CSRF_TRUSTED_ORIGINS = [f"{public.scheme}://{public.netloc}"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if public.scheme == "https" else None
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = public.scheme == "https"
SESSION_COOKIE_PATH = CSRF_COOKIE_PATH = f"{PREFIX}/"
SESSION_COOKIE_NAME = "rolloutdeck_session"
CSRF_COOKIE_NAME = "rolloutdeck_csrf"
CSRF_FAILURE_VIEW = "dashboard.pages.common.error_pages.csrf_failure"
STATIC_URL = f"{PREFIX}/static/"
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "runs"

# --- Django ---------------------------------------------------------------------------------------------------------
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = True
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LANGUAGE_COOKIE_NAME = "language"
LOCALE_PATHS = [BASE_DIR / "dashboard" / "locale"]
ROOT_URLCONF = "dashboard.urls"
ASGI_APPLICATION = "dashboard.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "allauth.account",
    "allauth.socialaccount",
    "django_otp",
    "django_otp.plugins.otp_totp",
    "django_otp.plugins.otp_static",
    "rollouts",
    "dashboard",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "dashboard.middleware.headers.rolloutdeck_headers",
    "dashboard.middleware.forgotten_texts.clear_caches_of_forgotten_texts",
    "dashboard.middleware.static_files.StaticFilesMiddleware",
    "dashboard.middleware.sign_in.SignInSessionMiddleware",
    "dashboard.middleware.pages.LanguageMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "dashboard.middleware.sign_in.ExternalSignInMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "dashboard.middleware.sign_in.PageUserMiddleware",
    "dashboard.middleware.pages.LastProjectMiddleware",
    "dashboard.middleware.pages.FormAddressMiddleware",
    "dashboard.middleware.errors.SearchLimitMiddleware",
    "dashboard.middleware.errors.ServiceUnavailableMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "OPTIONS": {
            "loaders": [
                (
                    "django.template.loaders.cached.Loader",
                    ["dashboard.template_loader.Loader", "django.template.loaders.app_directories.Loader"],
                )
            ],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.context_processors.page_frame",
            ],
        },
    }
]
STATIC_ROOT = DATA_DIR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
DATA_UPLOAD_MAX_NUMBER_FIELDS = 2000  # a plan of 500 entries has two fields for each
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
WHITENOISE_IMMUTABLE_FILE_TEST = r"^/static/([0-9a-f]{10}|vendor/[^/]+@[^/]+)/"  # the URL has the version
AUTH_PASSWORD_VALIDATORS = [{"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"}]
CACHES = {  # counts while Redis is away, see counters.py; large, so that invented names do not remove a count
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 50_000}}
}
OTP_TOTP_ISSUER = f"Rolloutdeck {public.hostname}"
SESSION_ENGINE = "dashboard.sign_in.sessions"
SESSION_COOKIE_AGE = int(float(env.str("ROLLOUTDECK_SESSION_DAYS", "") or 30) * 24 * 60 * 60)
SECURE_HSTS_SECONDS = int(env.str("ROLLOUTDECK_HSTS_SECONDS", "") or 0) if public.scheme == "https" else 0
SOCIALACCOUNT_REQUESTS_TIMEOUT = 5  # seconds, of a request to an OpenID provider
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# --- data -----------------------------------------------------------------------------------------------------------
DATABASES: dict[str, dict[str, Any]] = {"default": env.db_url_config(DATABASE_URL)}
# The threads of `dashboard/handler.py` keep their connections. Each checks its own before a request.
DATABASES["default"] |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 30,
        # FULL: after a receipt the client deletes its copy, so the data must survive a power cut.
        "init_command": (
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA mmap_size=268435456; PRAGMA cache_size=-8000;"
        ),
    }
    DATABASES["default"]["TEST"] = {"NAME": DATA_DIR / "test.sqlite3"}
CHANNEL_LAYERS = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
}
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://") if REDIS_URL.startswith("unix://") else REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_DIRECT = True  # each machine has a queue of its own too, for searches
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_MAX_MEMORY_PER_CHILD = MAX_WORKER_MEMORY_MB * 1_000_000 // 2 // 1024  # KiB; replaced after its task
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "retry_on_timeout": True,
    # If Redis does not answer, a publish fails at once instead of after six seconds. The sweep sends again.
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}
CELERY_TASK_PUBLISH_RETRY = False
# A queue of its own, which workers read in turn with the other one: thousands of waiting dumps do not delay the sweep.
SCHEDULE_QUEUE = "schedule"
CELERY_TASK_QUEUES: dict[str, dict[str, Any]] = {name: {} for name in ("celery", SCHEDULE_QUEUE)}
CELERY_TASK_ROUTES = {
    f"workers.tasks.{name}": {"queue": SCHEDULE_QUEUE} for name in ("sweep", "measure_disk_usage", "hourly_cleanup")
}
CELERY_BEAT_SCHEDULE = {
    "sweep": {"task": "workers.tasks.sweep", "schedule": 10.0, "options": {"expires": 10.0}},
    "measure_disk_usage": {"task": "workers.tasks.measure_disk_usage", "schedule": 15.0, "options": {"expires": 15.0}},
    "hourly_cleanup": {"task": "workers.tasks.hourly_cleanup", "schedule": 3600.0, "options": {"expires": 3600.0}},
}

# --- API ------------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "dashboard.sign_in.tokens.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["dashboard.permissions.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["dashboard.api.renderers.OrjsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["dashboard.api.parsers.LenientJSON"],
    "DEFAULT_SCHEMA_CLASS": "dashboard.api.schema.ApiSchema",
    "EXCEPTION_HANDLER": "dashboard.api.exceptions.handle_api_exception",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Rolloutdeck",
    "VERSION": "1",
    "DESCRIPTION": "Generations of a language model during training: runs, dumps, samples, flags, metrics.",
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "SERVE_INCLUDE_SCHEMA": False,
    "POSTPROCESSING_HOOKS": ["dashboard.api.schema.add_upload_operations", "dashboard.api.schema.add_errors"],
}

# --- logging --------------------------------------------------------------------------------------------------------
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"ids": {"()": "rollouts.telemetry.LogIds"}},
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s:%(ids)s %(message)s"},
        "json": {
            "()": "pythonjsonlogger.json.JsonFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s %(message)s",
            "reserved_attrs": [*RESERVED_ATTRS, "ids"],
            "rename_fields": {"asctime": "time", "levelname": "level", "name": "logger"},
        },
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT, "filters": ["ids"]}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {"django.request": {"level": "ERROR"}, "httpx": {"level": "WARNING"}},
}

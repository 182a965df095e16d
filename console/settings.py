"""The one settings file. The environment is read only through `pool.env`; defaults are safe for development."""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from console.bounded_connection import connection_class, limits_of
from pool.env import ConfigError, env_bool, env_int, env_json, env_networks, env_secret, env_str

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env_str("SLUICE_DATA_DIR", str(BASE_DIR / "var"))).absolute()


def read_package_paths(listed: object) -> dict[str, Path]:
    """Package name → folder with its converted weights. Raises ConfigError for anything but a JSON object."""
    if not isinstance(listed, dict):
        raise ConfigError("SLUICE_PACKAGE_PATHS must be a JSON object.", variable="SLUICE_PACKAGE_PATHS")
    return {str(name): Path(str(path)) for name, path in listed.items()}


def database_from_url(url: str) -> dict[str, object]:
    """`postgresql://user:password@host:port/name?host=/socket/dir` as Django's dictionary."""
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    process = env_str("SLUICE_PROCESS", "sluice")
    limits = limits_of(process)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "sluice",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", parts.hostname or ""),
        "PORT": str(parts.port or query.pop("port", "")),
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            **query,
            "connect_timeout": 3,
            "application_name": process,
            "options": limits.server_options,
            "pool": {
                "connection_class": connection_class(limits),
                "min_size": 1,
                "max_size": env_int("SLUICE_DATABASE_POOL", 8, minimum=2, maximum=100),
                "timeout": 2.0,
                # Gives up soon, so that the next request tries afresh: its back-off would outlast the outage.
                "reconnect_timeout": 4.0,
                "max_idle": 60.0,
            },
        },
    }


MODEL_ROOTS = [root for root in env_str("SLUICE_MODEL_ROOTS", str(DATA_DIR / "models")).split(":") if root]
PACKAGE_PATHS = read_package_paths(env_json("SLUICE_PACKAGE_PATHS", {}))

# A command that needs none gets one of its own: no process ever accepts what a key from a repository signed.
SECRET_KEY = env_secret("SLUICE_SECRET_KEY", default="") or secrets.token_urlsafe(48)
DEBUG = env_bool("SLUICE_DEBUG", default=False)
ALLOWED_HOSTS = [host for host in env_str("SLUICE_ALLOWED_HOSTS", "").split(",") if host] or [
    "localhost",
    "127.0.0.1",
    "[::1]",
]
CSRF_TRUSTED_ORIGINS = [origin for origin in env_str("SLUICE_TRUSTED_ORIGINS", "").split(",") if origin]
# Besides the internet: where alerts may be told of.
WEBHOOK_NETWORKS = env_networks("SLUICE_WEBHOOK_NETWORKS")
ROOT_URLCONF = "console.urls"
ASGI_APPLICATION = "console.asgi.application"
WSGI_APPLICATION = "console.wsgi.application"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "axes",
    "csp",
    "pool",
    "console",
]
MIDDLEWARE = [
    "console.middleware.RequestIdentity",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "console.middleware.ErrorPages",
    "axes.middleware.AxesMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "console.access.template_rights",
            ],
            "builtins": ["console.templatetags.units"],
        },
    }
]

DATABASES = {
    "default": database_from_url(env_str("SLUICE_DATABASE_URL", "postgresql://sluice@127.0.0.1:5432/sluice"))
}
_BIND = env_str("SLUICE_BIND", "127.0.0.1")
GATEWAY_URL = env_str(
    "SLUICE_GATEWAY_URL",
    f"http://{'127.0.0.1' if _BIND in ('0.0.0.0', '::') else _BIND}"
    f":{env_int('SLUICE_GATEWAY_PORT', 8080, minimum=1, maximum=65535)}",
)
"""Where the playground reaches a gateway; no page shows it."""
REDIS_URL = env_str("SLUICE_REDIS_URL", "redis://127.0.0.1:6379/0")
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL]},
    }
}
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AXES_FAILURE_LIMIT = 8
AXES_COOLOFF_TIME = 0.1
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_VERBOSE = False
AXES_LOCKOUT_TEMPLATE = "sign_in_locked.html"
LOGIN_URL = "/sign-in/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/sign-in/"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = DATA_DIR / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "console.storage.ModuleStaticFilesStorage"},
}

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env_bool("SLUICE_HTTPS", default=False)
SESSION_COOKIE_NAME = f"sluice_{env_int('SLUICE_WEB_PORT', 8000, minimum=1, maximum=65535)}"
CSRF_COOKIE_NAME = f"{SESSION_COOKIE_NAME}_csrf"
CSRF_FAILURE_VIEW = "console.error_answers.csrf_failed"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 1_048_576
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'none'"],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "console.api.authentication.TokenAuthentication",
        "console.api.authentication.BrowserAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["console.access.RoleRequired"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["console.api.parsers.StrictJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "console.error_answers.api_exception_handler",
    # All answers are JSON: `format` says what is in one (console/api/latency.py), not how it is written.
    "URL_FORMAT_OVERRIDE": None,
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Sluice",
    "DESCRIPTION": "Operate a pool of GPUs that serves many models with vLLM.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "OAS_VERSION": "3.1.0",
    "SERVE_PERMISSIONS": ["console.access.RoleRequired"],
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "filters": {"secrets": {"()": "console.redaction.SecretFilter"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["secrets"]},
    },
    "root": {"handlers": ["stderr"], "level": env_str("SLUICE_LOG_LEVEL", "INFO")},
    "loggers": {"django.request": {"level": "CRITICAL"}, "axes": {"level": "WARNING"}},
}

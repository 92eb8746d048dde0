"""Django settings. Values that a person may change come from ``playground.config``."""

from pathlib import Path

import dj_database_url

from playground.config import BASE_DIR, config, split
from playground.secret import secret_key
from playground.supervisor.embedded_redis import running_url

DATA_DIR: Path = config.data_dir
DATA_DIR.mkdir(parents=True, exist_ok=True)

SECRET_KEY = config.secret_key or secret_key(DATA_DIR)
DEBUG = config.debug
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *split(config.allowed_hosts)]
CSRF_TRUSTED_ORIGINS = split(config.csrf_trusted_origins)

INSTALLED_APPS = [
    "daphne",
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "corsheaders",
    "allauth",
    "allauth.account",
    "playground.chat",
    "playground.accounts",
    "playground.sharing",
    "playground.api",
    "playground.usage",
    "playground.supervisor",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "corsheaders.middleware.CorsMiddleware",
    "playground.api.middleware.ApiMiddleware",
    "playground.middleware.StaticFilesMiddleware",
    "playground.middleware.SecurityHeadersMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "playground.identity.OwnerMiddleware",
    "playground.accounts.middleware.AccessMiddleware",
]

ROOT_URLCONF = "playground.urls"
ASGI_APPLICATION = "playground.asgi.application"
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
                "playground.accounts.context.page",
            ]
        },
    }
]

# Database: SQLite in WAL mode lets web and worker write at the same time; writers wait up to 20 s for each other.
DATABASES = {"default": dj_database_url.parse(config.database_url or f"sqlite:///{DATA_DIR / 'playground.sqlite3'}")}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON",
    }
    DATABASES["default"]["TEST"] = {"NAME": DATA_DIR / "test.sqlite3"}  # a file: threads and processes share it as in production
else:
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"]["CONN_MAX_AGE"] = 60  # opening SQLite's file costs a request and its task 1 to 2 ms each as well
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Redis: Celery's broker, streams and control events. The default mode sets REDIS_URL to its embedded server; commands started
# beside it find that one.
REDIS_URL = config.redis_url or running_url(DATA_DIR) or "redis://127.0.0.1:6379/0"
REDIS_SILENCE_SECONDS = 5.0  # a server that says nothing for so long is given up where a person waits

# Celery: a task is a generation. Acknowledged early and made idempotent by a compare-and-set, so that a crash never runs an
# answer twice; the reaper ends what a dead worker left behind.
CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "generate"
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_POOL = "playground.celery:TaskPool"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_PREFETCH = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 5.0  # seconds
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 24 * 3600,  # seconds; never reached: messages are acknowledged early
    "socket_timeout": REDIS_SILENCE_SECONDS,
}
CELERY_TASK_PUBLISH_RETRY = False  # each try would wait as long; a connection that has closed meanwhile is made again before the first

# Static files: the built bundle is committed and served by the application itself.
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_MAX_AGE = 60  # seconds; names with a hash are immutable

# Security
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = config.behind_https
if config.behind_https:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
DATA_UPLOAD_MAX_MEMORY_SIZE = config.max_message_bytes

# The API may be called from other sites' pages: a key decides there, never a cookie.
CORS_URLS_REGEX = r"^/v1(/|$)"
CORS_ALLOW_ALL_ORIGINS = config.cors_origins == "*"
CORS_ALLOWED_ORIGINS = [] if config.cors_origins in ("*", "none") else split(config.cors_origins)
CORS_ALLOW_METHODS = ("GET", "POST", "OPTIONS")
CORS_ALLOW_HEADERS = (
    *("authorization", "content-type", "idempotency-key", "openai-beta", "openai-organization", "openai-project", "user-agent"),
    *(f"x-stainless-{name}" for name in ("arch", "helper-method", "lang", "os", "package-version", "retry-count")),
    *(f"x-stainless-{name}" for name in ("runtime", "runtime-version", "timeout")),
)
CORS_EXPOSE_HEADERS = (
    *("retry-after", "x-request-id"),
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)

# Accounts: e-mail and password through django-allauth. A superuser without an e-mail signs in by name.
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend", "allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]
ACCOUNT_ADAPTER = "playground.accounts.adapter.AccountAdapter"
ACCOUNT_FORMS = {"add_email": "playground.accounts.forms.AddEmailForm"}
ACCOUNT_LOGIN_METHODS = {"email", "username"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "optional"
ACCOUNT_CHANGE_EMAIL = True
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
LOGIN_URL = "/accounts/login/"
LOGIN_REDIRECT_URL = ACCOUNT_LOGOUT_REDIRECT_URL = "/"
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if config.email_host else 'console'}.EmailBackend"
EMAIL_HOST, EMAIL_PORT, EMAIL_USE_TLS = config.email_host, config.email_port, config.email_tls
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = config.email_user, config.email_password
DEFAULT_FROM_EMAIL = SERVER_EMAIL = config.email_from

# Admin
UNFOLD = {
    "SITE_TITLE": "monokernel",
    "SITE_HEADER": "monokernel",
    "SITE_URL": "/stats/",
    "SITE_DROPDOWN": [
        {"icon": "monitoring", "title": "Usage stats", "link": "/stats/"},
        {"icon": "terminal", "title": "Playground", "link": "/"},
    ],
    "SHOW_VIEW_ON_SITE": True,
    "SIDEBAR": {"show_all_applications": True},
    "BORDER_RADIUS": "4px",
    "COLORS": {  # the product's greys and signal colour
        "base": {
            **{"50": "#F7F8F3", "100": "#EFF1E9", "200": "#D3D8C8", "300": "#B4BDB2", "400": "#8F9A8E", "500": "#717C71"},
            **{"600": "#555D4C", "700": "#3A423A", "800": "#1D221D", "900": "#151915", "950": "#101310"},
        },
        "primary": {
            **{"50": "#F6FBE0", "100": "#EAF4BE", "200": "#DDF08A", "300": "#D5ED66", "400": "#CDEB4A", "500": "#9DB92B"},
            **{"600": "#465B00", "700": "#3A4B00", "800": "#2E3B06", "900": "#252C13", "950": "#12160A"},
        },
    },
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("fr", "Français")]
LOCALE_PATHS = [BASE_DIR / "playground" / "locale"]
USE_TZ = True
TIME_ZONE = "UTC"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": config.log_level},
}

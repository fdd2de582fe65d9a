"""A Django site in one file with a synchronous view that enqueues a job. Run it as a program for a demo."""

from __future__ import annotations

import sys
from pathlib import Path

import django
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from longshore import Harbor

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="only for this example",
        USE_TZ=True,
    )
    django.setup()

DATABASE = Path(__file__).resolve().parent / "jobs.db"

harbor = Harbor(f"sqlite:///{DATABASE}")


@harbor.task(attempts=3)
def send_welcome(name: str, copies: int = 1) -> str:
    """Runs in a thread of the worker, so you may use the ORM."""
    return f"welcome {name}" * copies


@csrf_exempt
@require_POST
def sign_up(request: HttpRequest) -> JsonResponse:
    """Enqueue with the blocking form; a synchronous view has no event loop."""
    handle = send_welcome.enqueue_sync(name=request.POST["name"])
    return JsonResponse({"job": handle.id}, status=202)


@require_GET
def look(_: HttpRequest, job_id: str) -> JsonResponse:
    """Return the status of the job."""
    return JsonResponse({"status": send_welcome.handle(job_id).status_sync()})


urlpatterns = [path("sign-up", sign_up), path("jobs/<str:job_id>", look)]


def demo() -> None:
    """Sign up as a browser would, show the status, run the jobs, and show it again."""
    browser = Client()
    answer = browser.post("/sign-up", {"name": "Ada"})
    job_id = answer.json()["job"]
    print(f"POST /sign-up -> {answer.status_code}")
    print(f"GET /jobs/ID -> {browser.get(f'/jobs/{job_id}').json()['status']}")
    print(f"jobs run: {harbor.run_until_empty_sync()}")
    print(f"GET /jobs/ID -> {browser.get(f'/jobs/{job_id}').json()['status']}")
    harbor.close_sync()


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        sys.exit(harbor.run_worker(concurrency=4))
    demo()

"""The sandbox document: an opaque origin without network, whoever opens it."""


def policy(response) -> dict[str, str]:
    parts = (part.strip().partition(" ") for part in response["Content-Security-Policy"].split(";"))
    return {name: value for name, _, value in parts}


def test_sandbox_has_an_opaque_origin_and_no_network(client):
    response = client.get("/sandbox/")
    assert response.status_code == 200
    rules = policy(response)
    assert rules["sandbox"] == "allow-scripts"
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules and "frame-src" not in rules
    assert rules["form-action"] == rules["base-uri"] == "'none'"
    assert "http" not in response["Content-Security-Policy"] and "'unsafe-eval'" not in response["Content-Security-Policy"]


def test_only_pages_of_this_site_may_frame_the_sandbox(client):
    response = client.get("/sandbox/")
    assert policy(response)["frame-ancestors"] == "'self'"
    assert "X-Frame-Options" not in response


def test_sandbox_takes_no_input(client):
    response = client.get("/sandbox/?html=<script>")
    assert b"html=" not in response.content
    assert client.post("/sandbox/").status_code == 405

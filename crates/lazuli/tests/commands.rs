//! Commands for people and scripts: signatures, connection strings, health, status, doctor, reset,
//! completions.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use lazuli_account::DEVELOPMENT_KEY;
use lazuli_protocol::ServiceKind;
use serde_json::Value;
use support::{DEVELOPMENT_ACCOUNT, Reply, Server, fail, fail_to_serve, http, lazuli, run, succeed, text};

const BLOB: &str = "x-ms-blob-type: BlockBlob";

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeed(&[arguments, &["--json"]].concat())).unwrap()
}

/// Sends a request to a URL.
fn request(method: &str, url: &str, headers: &str, body: &[u8]) -> Reply {
    let (address, target) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let length = body.len();
    let head = format!("{method} /{target} HTTP/1.1\r\nContent-Length: {length}\r\n{headers}");
    http(address, &head, body)
}

#[test]
fn signature_of_each_kind_admits_what_it_names_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(dir.path());
    let server = Server::start_with(
        dir.path(),
        &["--create", "blob:photos", "queue:jobs", "table:things", "share:docs"],
        &[],
    );
    assert_eq!(server.send(ServiceKind::Blob, "PUT", "/photos/a%20b.jpg", BLOB, b"picture").status, 201);
    let url = |arguments: &[&str]| {
        let all = [&["sas"][..], arguments, &["--print", "url", "--data", data]].concat();
        succeed(&all).trim_end().to_owned()
    };
    let status = |method, url: &str, headers, body| request(method, url, headers, body).status;
    let with = |url: &str, more: &str| format!("{url}&{more}");

    let blob = url(&["blob", "photos/a b.jpg"]);
    assert!(blob.contains("/photos/a%20b.jpg?"), "{blob}");
    assert_eq!(request("GET", &blob, "", b"").text(), "picture");
    assert_eq!(status("DELETE", &blob, "", b""), 403);
    let list = |url: &str| with(url, "restype=container&comp=list");
    let container = url(&["container", "photos"]);
    assert!(request("GET", &list(&container), "", b"").text().contains("a b.jpg"));
    assert_eq!(
        status("PUT", &container.replace("photos?", "photos/new?"), "x-ms-blob-type: BlockBlob\r\n", b"x"),
        403
    );
    let writable = url(&["container", "photos", "--permissions", "write,create"]);
    let put = writable.replace("photos?", "photos/new?");
    assert_eq!(status("PUT", &put, "x-ms-blob-type: BlockBlob\r\n", b"x"), 201);
    assert_eq!(status("GET", &put, "", b""), 403);

    let queue = url(&["queue", "jobs", "--permissions", "rap"]).replace("jobs?", "jobs/messages?");
    let message = b"<QueueMessage><MessageText>x</MessageText></QueueMessage>";
    assert_eq!(status("POST", &queue, "", message), 201);
    assert!(request("GET", &queue, "", b"").text().contains("<MessageText>x<"));
    let table = url(&["table", "Things", "--permissions", "all"]).replace("Things?", "things?");
    let json = "Content-Type: application/json\r\nAccept: application/json\r\n";
    assert_eq!(status("POST", &table, json, b"{\"PartitionKey\":\"p\",\"RowKey\":\"r\"}"), 201);
    assert!(request("GET", &table, json, b"").text().contains("\"RowKey\":\"r\""));
    let share = url(&["share", "docs", "--permissions", "rcwdl"]);
    let create = share.replace("docs?", "docs/readme.txt?");
    assert_eq!(status("PUT", &create, "x-ms-type: file\r\nx-ms-content-length: 3\r\n", b""), 201);
    assert_eq!(status("GET", &url(&["file", "docs/readme.txt"]), "", b""), 200);
    let account = url(&["account"]);
    let listed = request("GET", &with(&account, "comp=list"), "", b"");
    assert!(listed.text().contains("<Name>photos</Name>"), "{}", listed.text());

    // A later start, an address, and another account's name.
    let later = url(&["container", "photos", "--start", "1h", "--expiry", "2h"]);
    assert_eq!(status("GET", &list(&later), "", b""), 403);
    let elsewhere = url(&["container", "photos", "--ip", "10.1.2.3"]);
    assert_eq!(status("GET", &list(&elsewhere), "", b""), 403);
    assert_eq!(status("GET", &list(&url(&["container", "photos", "--https-only"])), "", b""), 403);
    for (arguments, code, expected) in [
        (&["container", "photos", "--account", "stranger"][..], 1, "there is: devstoreaccount1"),
        (&["container", "photos", "--permissions", "writ"], 2, "delete-version (x)"),
        (&["container", "photos", "--expiry", "soon"], 2, "30m, 12h or 7d"),
        (&["container", "photos", "--start", "2020-01-01", "--expiry", "2020-01-02"], 2, "in the past"),
        (&["container", "photos", "--start", "2h", "--expiry", "1h"], 2, "before --start"),
        (&["container", "photos", "--key", "2"], 1, "no key 2"),
        (&["blob", "photos"], 2, "CONTAINER/BLOB"),
        (&["container"], 2, "required"),
    ] {
        let said = fail(&[&["sas", "--data", data][..], arguments].concat(), code);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    let printed = succeed(&["sas", "container", "photos", "--permissions", "rwl", "--data", data]);
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines[0].starts_with("query   sv=") && lines[1].starts_with("url     http://"), "{printed}");
    assert!(lines[2].starts_with("azcopy  azcopy copy 'FOLDER/*' 'http://"), "{printed}");
    assert!(lines[2].ends_with("' --from-to=LocalBlob --recursive"), "{printed}");
}

#[test]
fn connection_string_fits_each_client() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(dir.path());
    let server = Server::start(dir.path());
    let connection = |arguments: &[&str]| {
        succeed(&[&["account", "connection-string", "--data", data][..], arguments].concat())
    };
    assert_eq!(connection(&[]).trim_end(), server.ready["connect"]);
    let connect = &server.ready["connect"];
    let smb = server.address("smb").rsplit(':').next().unwrap();
    for (client, parts) in [
        ("az", &["export AZURE_STORAGE_CONNECTION_STRING='", connect][..]),
        ("azcopy", &["azcopy copy", "--from-to=LocalBlob", "--from-to=LocalFile", "&sig="]),
        ("rclone", &["type = azureblob", "type = azurefiles", "endpoint = http://127.0.0.1:"]),
        ("dotnet", &["new BlobServiceClient(\"", connect]),
        ("python", &["from_connection_string(\"", connect]),
        ("smb", &["username=devstoreaccount1\npassword=", DEVELOPMENT_KEY]),
        ("mount", &["'devstoreaccount1'", "mount -t cifs //127.0.0.1/SHARE /mnt -o credentials=", smb]),
    ] {
        let printed = connection(&["--for", client]);
        for part in parts {
            assert!(printed.contains(part), "{client}: {printed}");
        }
    }
    // The signature in the line for AzCopy works.
    let line = connection(&["--for", "azcopy"]);
    let url = line.split('\'').nth(3).unwrap().replace("/CONTAINER?", "?comp=list&");
    assert_eq!(request("GET", &url, "", b"").status, 200);
    succeed(&["account", "add", "second", "--data", data]);
    let said = fail(&["account", "connection-string", "--data", data], 2);
    assert!(said.contains("devstoreaccount1, second"), "{said}");
    assert!(connection(&["second", "--key", "2"]).contains("AccountName=second;"));
    server.stop();
    // On a stopped server, the ports are those of the configuration.
    assert!(
        connection(&[DEVELOPMENT_ACCOUNT]).contains("BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;")
    );
}

#[test]
fn health_succeeds_while_the_server_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(dir.path());
    let server = Server::start(dir.path());
    assert_eq!(succeed(&["health", "--data", data]), "ready\n");
    assert_eq!(succeed(&["health", "--live", "--data", data]), "ok\n");
    let address = server.address("console").to_owned();
    assert_eq!(succeed(&["health", "--address", &address]), "ready\n");
    server.stop();
    let said = fail(&["health", "--address", &address], 1);
    assert!(said.contains(&address), "{said}");
    // A server with data in memory is found by its configuration.
    let port = address.rsplit(':').next().unwrap();
    let mut command = lazuli();
    let ports = support::FREE_PORTS.iter().filter(|option| !option.starts_with("--console"));
    command.arg("serve").arg("--in-memory").args(ports).env("LAZULI_CONSOLE_PORT", port);
    let _server = Server::spawn(&mut command);
    let mut health = lazuli();
    health.args(["health", "--data", "/no/such"]).env("LAZULI_CONSOLE_PORT", port);
    let output = health.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("ready (in memory"), "{}", text(&output.stdout));
}

#[test]
fn status_shows_services_counts_and_space_of_a_running_server() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(dir.path());
    let said = fail(&["status", "--data", data], 1);
    assert!(said.contains("no server is running"), "{said}");
    let server = Server::start_with(dir.path(), &["--create", "blob:photos,more", "queue:jobs"], &[]);
    assert_eq!(server.send(ServiceKind::Blob, "PUT", "/photos/a", BLOB, &[7; 10_000]).status, 201);
    support::eventually("the accounts are counted", || {
        json(&["status", "--data", data])["accounts"][0]["usage"]["services"]["blob"]["objects"] == 1
    });
    let status = json(&["status", "--data", data]);
    assert_eq!((&status["state"], &status["process"]), (&"ready".into(), &server.pid().into()));
    let held = &status["accounts"][0]["usage"]["services"];
    assert_eq!((&held["blob"]["resources"], &held["blob"]["objects"]), (&2.into(), &1.into()));
    assert_eq!(held["blob"]["bytes"], 10_000);
    assert_eq!(held["queue"]["resources"], 1);
    assert!(held.get("table").is_none(), "{status}");
    assert!(status["disk"]["used"].as_u64().unwrap() > 10_000, "{status}");
    let shown = succeed(&["status", "--data", data]);
    for part in
        ["state    ready", server.address("blob"), "1 in 2", "in use", "9.77 KiB", "the counts are of 20"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(json(&["status", "--no-counts", "--data", data])["accounts"][0]["usage"].is_null());
}

/// Returns whether the doctor succeeded, and its findings by their check.
fn findings(arguments: &[&str], variables: &[(&str, &str)]) -> (bool, Value) {
    let mut command = lazuli();
    command.args(["doctor", "--json"]).args(arguments).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let by_check = findings.as_array().unwrap().iter().map(|finding| {
        let text = format!("{} {} {}", finding["level"], finding["message"], finding["fix"]);
        (finding["what"].as_str().unwrap().to_owned(), Value::from(text))
    });
    (output.status.success(), Value::Object(by_check.collect()))
}

#[test]
fn doctor_names_each_problem_with_its_fix() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(dir.path());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let free: Vec<(&str, &str)> = ["QUEUE", "TABLE", "FILE", "SMB", "CONSOLE"]
        .map(|service| match service {
            "QUEUE" => ("LAZULI_QUEUE_PORT", "0"),
            "TABLE" => ("LAZULI_TABLE_PORT", "0"),
            "FILE" => ("LAZULI_FILE_PORT", "0"),
            "SMB" => ("LAZULI_SMB_PORT", "0"),
            _ => ("LAZULI_CONSOLE_PORT", "0"),
        })
        .to_vec();
    let with = |more: &[(&'static str, &str)]| {
        free.iter()
            .copied()
            .chain(more.iter().copied())
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect::<Vec<_>>()
    };
    let examine = |more: &[(&'static str, &str)]| {
        let variables = with(more);
        let variables: Vec<_> = variables.iter().map(|(n, v)| (&n[..], &v[..])).collect();
        findings(&["--data", data], &variables)
    };
    let check = |findings: &Value, check: &str, parts: &[&str]| {
        let found = findings[check].as_str().unwrap_or_else(|| panic!("{check}: {findings}"));
        assert!(parts.iter().all(|part| found.contains(part)), "{check}: {found}");
    };
    let (_, found) = examine(&[("LAZULI_BLOB_PORT", &port)]);
    check(&found, "server", &["ok", "not running"]);
    check(&found, "ports", &["problem", &port, "--blob-port"]);
    check(&found, "data directory", &["ok", "is empty"]);
    check(&found, "disk sync", &["ms for 4 KiB"]);
    check(&found, "disk space", &["free of"]);
    check(&found, "development key", &["ok", "only this machine"]);
    check(&found, "TLS", &["ok"]);
    assert!(found.get("clock").is_some() && found.get("open files").is_some(), "{found}");

    let (succeeded, found) = examine(&[("LAZULI_BLOB_PORT", "0"), ("LAZULI_HOST", "0.0.0.0")]);
    assert!(!succeeded);
    check(&found, "development key", &["problem", "refuses to start", "rotate-key devstoreaccount1"]);
    check(&found, "TLS", &["warning", "unencrypted"]);
    let wrong =
        [("LAZULI_TLS_CERT", "/no/such.crt"), ("LAZULI_TLS_KEY", "/no/such.key"), ("LAZULI_BLOB_PORT", "0")];
    let (succeeded, found) = examine(&wrong);
    assert!(!succeeded);
    check(&found, "TLS", &["problem", "/no/such", "SIGHUP"]);

    let server = Server::start_with(dir.path(), &["--account", "alpha:a2V5"], &[]);
    let (_, found) = findings(&["--data", data], &[]);
    check(&found, "server", &["ok", "ready"]);
    check(&found, "ports", &["ok", "answers on all"]);
    check(&found, "development key", &["ok", "no account has it"]);
    server.stop();
    assert!(text(&run(&["doctor", "--data", data]).stdout).starts_with("RESULT "));
}

#[test]
fn reset_says_what_it_deletes_and_deletes_it_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(dir.path());
    let server = Server::start_with(dir.path(), &["--create", "blob:photos"], &[]);
    assert_eq!(server.send(ServiceKind::Blob, "PUT", "/photos/a", BLOB, b"x").status, 201);
    std::fs::write(dir.path().join("notes.txt"), b"not ours").unwrap();
    let said = fail(&["reset", "--yes", "--data", data], 1);
    assert!(said.contains("Stop the server first"), "{said}");
    server.stop();
    let output = run(&["reset", "--data", data]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).contains("1 container with 1 blob"), "{}", text(&output.stdout));
    let server = Server::start(dir.path());
    assert_eq!(server.send(ServiceKind::Blob, "GET", "/photos/a", "", b"").status, 200);
    server.stop();
    let said = succeed(&["reset", "--yes", "--data", data]);
    assert!(said.contains("account devstoreaccount1: 1 container") && said.ends_with("deleted\n"), "{said}");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"], "what is not Lazuli's stays");
    std::fs::remove_file(dir.path().join("notes.txt")).unwrap();
    let server = Server::start(dir.path());
    assert_eq!(server.send(ServiceKind::Blob, "GET", "/photos/a", "", b"").status, 404);
}

#[test]
fn completions_and_manual_pages_cover_the_commands_and_the_version_says_what_was_built() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let printed = succeed(&["completions", shell]);
        assert!(printed.contains("connection-string") && printed.contains("blob-port"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    succeed(&["man", path(dir.path())]);
    for page in ["lazuli.1", "lazuli-serve.1", "lazuli-account-remove.1"] {
        let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.starts_with(".ie") || text.contains(".TH"), "{page}");
    }
    assert!(fail(&["man", "/no/such/directory"], 1).contains("/no/such/directory"));
    let version = succeed(&["--version"]);
    let expected = format!("lazuli {} (", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(&expected) && version.trim_end().ends_with(')'), "{version}");
}

#[test]
fn queue_whose_seed_was_interrupted_is_loaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let (data, seed) = (dir.path().join("data"), dir.path().join("seed"));
    std::fs::create_dir_all(seed.join("queue")).unwrap();
    std::fs::write(seed.join("queue/jobs.txt"), "one\ntwo\n").unwrap();
    let server = Server::start(&data);
    // The state after a start that was killed between two messages.
    let partial = server.send(ServiceKind::Queue, "PUT", "/jobs", "x-ms-meta-lazuliseed: partial", b"");
    assert_eq!(partial.status, 201);
    let message = "<QueueMessage><MessageText>one</MessageText></QueueMessage>";
    assert_eq!(server.call(ServiceKind::Queue, "POST", "/jobs/messages", message).status, 201);
    server.stop();
    for _ in 0..2 {
        let server = Server::start_with(&data, &["--seed", path(&seed)], &[]);
        let target = "/jobs/messages?peekonly=true&numofmessages=32";
        let messages = server.call(ServiceKind::Queue, "GET", target, "").text();
        assert_eq!(messages.matches("<MessageText>").count(), 2, "{messages}");
        server.stop();
    }
}

#[test]
fn create_and_seed_make_what_is_missing_and_leave_what_exists() {
    let dir = tempfile::tempdir().unwrap();
    let (data, seed) = (dir.path().join("data"), dir.path().join("seed"));
    for folder in ["blob/site/css", "blob/empty", "share/docs/deep", "queue", "table"] {
        std::fs::create_dir_all(seed.join(folder)).unwrap();
    }
    let large = support::noise(1, 9 << 20);
    std::fs::write(seed.join("blob/site/index.html"), "<p>").unwrap();
    std::fs::write(seed.join("blob/site/css/ä b.css"), "p {}").unwrap();
    std::fs::write(seed.join("blob/site/large.bin"), &large).unwrap();
    std::fs::write(seed.join("share/docs/deep/large.bin"), &large).unwrap();
    std::fs::write(seed.join("share/docs/empty.txt"), "").unwrap();
    std::fs::write(seed.join("queue/jobs.txt"), "one\n<two> & more\n").unwrap();
    let entities = r#"[{"PartitionKey":"p","RowKey":"1","Size":5},{"PartitionKey":"p","RowKey":"2"}]"#;
    std::fs::write(seed.join("table/things.json"), entities).unwrap();
    let arguments =
        ["--create", "blob:site,more", "queue:other", "table:t00", "share:s00", "--seed", path(&seed)];
    let check = |server: &Server| {
        let get = |service, target: &str| {
            let reply = server.send(service, "GET", target, "Accept: application/json", b"");
            assert_eq!(reply.status, 200, "{target}: {}", reply.text());
            reply
        };
        assert!(
            get(ServiceKind::Blob, "/site/index.html")
                .head
                .to_lowercase()
                .contains("content-type: text/html")
        );
        assert_eq!(get(ServiceKind::Blob, "/site/css/%C3%A4%20b.css").text(), "p {}");
        assert!(get(ServiceKind::Blob, "/site/large.bin").body == large);
        get(ServiceKind::Blob, "/more?restype=container");
        get(ServiceKind::Blob, "/empty?restype=container");
        assert!(get(ServiceKind::File, "/docs/deep/large.bin").body == large);
        assert!(get(ServiceKind::File, "/docs/empty.txt").body.is_empty());
        get(ServiceKind::File, "/s00?restype=share");
        let messages = get(ServiceKind::Queue, "/jobs/messages?peekonly=true&numofmessages=32").text();
        assert_eq!(messages.matches("<MessageText>").count(), 2, "{messages}");
        assert!(messages.contains("&lt;two&gt; &amp; more"), "{messages}");
        assert!(
            get(ServiceKind::Table, "/things(PartitionKey='p',RowKey='1')").text().contains("\"Size\":5")
        );
        get(ServiceKind::Table, "/t00()");
    };
    let server = Server::start_with(&data, &arguments, &[]);
    check(&server);
    assert_eq!(server.send(ServiceKind::Blob, "PUT", "/more/mine", BLOB, b"mine").status, 201);
    assert_eq!(server.send(ServiceKind::Blob, "PUT", "/site/index.html", BLOB, b"mine").status, 201);
    server.stop();
    let variables = [("LAZULI_CREATE", "blob:site,more queue:other"), ("LAZULI_SEED", path(&seed))];
    let server = Server::start_with(&data, &[], &variables);
    assert_eq!(server.send(ServiceKind::Blob, "GET", "/site/index.html", "", b"").text(), "mine");
    assert_eq!(server.send(ServiceKind::Blob, "GET", "/more/mine", "", b"").text(), "mine");
    assert_eq!(
        server
            .send(
                ServiceKind::Blob,
                "PUT",
                "/site/index.html",
                "x-ms-blob-type: BlockBlob\nx-ms-blob-content-type: text/html",
                b"<p>"
            )
            .status,
        201
    );
    check(&server);
    let log = server.stop();
    assert!(log.contains("count=0"), "{log}");

    std::fs::write(seed.join("readme.txt"), "").unwrap();
    let said = fail_to_serve(&["--data", path(&data), "--seed", path(&seed)]);
    assert!(said.contains("readme.txt: expected the folders"), "{said}");
    let said = fail(&["serve", "--create", "blob:my_photos"], 2);
    assert!(said.contains("hyphens instead of underscores"), "{said}");
}

#[test]
fn a_server_that_cannot_listen_creates_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for option in ["--blob-port", "--smb-port", "--console-port"] {
        let mut arguments = vec!["serve".to_owned(), "--data".into(), path(&data).into()];
        arguments
            .extend(support::FREE_PORTS.iter().filter(|free| !free.starts_with(option)).map(|s| (*s).into()));
        arguments.push(format!("{option}={port}"));
        let said = fail(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), 1);
        assert!(said.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{said}");
        assert!(!data.exists(), "{option}");
    }
}

#[test]
fn a_configuration_that_cannot_work_creates_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let seed = dir.path().join("seed");
    std::fs::create_dir_all(seed.join("table")).unwrap();
    std::fs::write(seed.join("table/things.json"), "{").unwrap();
    let issuer = dir.path().join("issuer.json");
    std::fs::write(&issuer, "{}").unwrap();
    for (options, expected) in [
        (&["--tls-cert", "/no/such.crt", "--tls-key", "/no/such.key"][..], "--tls-cert: /no/such.crt"),
        (&["--oidc-issuer", "/no/such/issuer.json"], "/no/such/issuer.json: No such file"),
        (&["--oidc-issuer", path(&issuer)], "issuer.json: "),
        (&["--seed", "/no/such/folder"], "--seed: /no/such/folder: No such file"),
        (&["--seed", path(&seed)], "things.json: "),
        (&["--host", "0.0.0.0"], "lazuli account add NAME --data"),
    ] {
        let said = fail_to_serve(&[&["--data", path(&data)], options].concat());
        assert!(said.contains(expected), "{options:?}: {said}");
        assert!(!data.exists(), "{options:?}");
    }
    let said = fail_to_serve(&["--data", path(&data), "--host", "0.0.0.0"]);
    assert!(said.contains("--create-data"), "{said}");
}

#[test]
fn errors_about_certificates_name_the_option_and_plain_http_gets_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let base = ["--data", path(&data), "--tls-cert", "/no/such.crt", "--tls-key", "/no/such.key"];
    let said = fail_to_serve(&base);
    assert!(said.contains("--tls-cert: /no/such.crt"), "{said}");
    let server = Server::start_with(&data, &["--tls-self-signed"], &[]);
    let certificate = std::path::PathBuf::from(&server.ready["trust"]);
    assert!(certificate.ends_with("tls/self-signed.crt") && certificate.is_file(), "{certificate:?}");
    for head in ["GET / HTTP/1.1\r\n", "PUT /devstoreaccount1/c?restype=container HTTP/1.1\r\n"] {
        let reply = http(server.address("blob"), head, b"");
        assert_eq!(reply.status, 400);
        assert!(reply.text().contains("speaks HTTPS only"), "{}", reply.text());
    }
    let key = dir.path().join("key.pem");
    std::fs::write(&key, "nothing").unwrap();
    let base = ["--data", path(&data), "--tls-cert", path(&certificate), "--tls-key", path(&key)];
    server.stop();
    let said = fail_to_serve(&base);
    assert!(said.contains("--tls-key: "), "{said}");
}

#[test]
fn every_account_has_a_connect_line_and_unknown_variables_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(dir.path());
    let keys = dir.path().join("keys");
    std::fs::write(&keys, format!("# two accounts\nalpha:a2V5\nbeta:{DEVELOPMENT_KEY}\n")).unwrap();
    let served = dir.path().join("served");
    let mut command = lazuli();
    command
        .arg("serve")
        .arg("--data")
        .arg(&served)
        .args(support::FREE_PORTS)
        .arg("--account-file")
        .arg(&keys);
    command
        .env("LAZULI_BLOBPORT", "1")
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut printed = String::new();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap());
    while printed.matches("  connect  ").count() < 2 {
        assert_ne!(std::io::BufRead::read_line(&mut lines, &mut printed).unwrap(), 0, "{printed}");
    }
    let line = format!(
        "connect  lazuli account connection-string alpha --data {}",
        path(&served.canonicalize().unwrap())
    );
    assert!(
        printed.contains(&line) && printed.contains("AccountName=beta;AccountKey=Eby8"),
        "{printed} {data}"
    );
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let log = text(&output.stderr);
    assert!(log.contains("write LAZULI_BLOB_PORT"), "{log}");
    // The printed command prints what to paste.
    let command: Vec<_> = line.split_whitespace().skip(2).collect();
    assert!(succeed(&command).contains("AccountName=alpha;AccountKey=a2V5;"));
}

#[test]
fn the_client_that_a_trusted_proxy_names_counts_in_signatures_and_logs() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(dir.path());
    let arguments = ["--create", "blob:photos", "--trusted-proxy", "127.0.0.1"];
    let server = Server::start_with(dir.path(), &arguments, &[]);
    let sas = |more: &[&str]| {
        let all = ["sas", "container", "photos", "--print", "url", "--data", data];
        format!("{}&restype=container&comp=list", succeed(&[&all[..], more].concat()).trim_end())
    };
    let bound = sas(&["--ip", "192.0.2.7"]);
    for (headers, status) in [
        ("", 403),
        ("X-Forwarded-For: 192.0.2.7\r\n", 200),
        ("X-Forwarded-For: 192.0.2.7, 127.0.0.1\r\n", 200),
        ("X-Forwarded-For: 192.0.2.7, 192.0.2.8\r\n", 403),
    ] {
        assert_eq!(request("GET", &bound, headers, b"").status, status, "{headers}");
    }
    let secure = sas(&["--https-only"]);
    assert_eq!(request("GET", &secure, "", b"").status, 403);
    assert_eq!(request("GET", &secure, "X-Forwarded-Proto: https\r\n", b"").status, 200);

    // The PROXY protocol, both versions.
    let (address, target) = bound.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let rest = format!("GET /{target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let four = [192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x67, 0, 80];
    let v2 = [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec(), four.to_vec()].concat();
    for (preface, status) in [
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 80\r\n".to_vec(), 200),
        (b"PROXY TCP4 192.0.2.9 10.0.0.1 4711 80\r\n".to_vec(), 403),
        (v2, 200),
    ] {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut stream, &[&preface[..], rest.as_bytes()].concat()).unwrap();
        assert_eq!(support::read_reply(stream).status, status, "{}", preface.escape_ascii());
    }
    // A proxy that speaks this protocol forwards the client's headers unread. They count only if the header
    // names another trusted proxy.
    let rest = rest.replace("Connection:", "X-Forwarded-For: 192.0.2.7\r\nConnection:");
    for (preface, status) in [
        (&b"PROXY UNKNOWN\r\n"[..], 403),
        (&b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"[..], 403),
        (&b"PROXY TCP4 192.0.2.9 10.0.0.1 4711 80\r\n"[..], 403),
        (&b"PROXY TCP4 127.0.0.1 10.0.0.1 4711 80\r\n"[..], 200),
    ] {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut stream, &[preface, rest.as_bytes()].concat()).unwrap();
        assert_eq!(support::read_reply(stream).status, status, "{}", preface.escape_ascii());
    }
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stream, format!("PROXY TCP4 nonsense\r\n{rest}").as_bytes()).unwrap();
    let mut reply = vec![];
    // The server closes such a connection, with or without a reset.
    let _ = std::io::Read::read_to_end(&mut stream, &mut reply);
    assert!(reply.is_empty(), "{}", text(&reply));
    let log = server.stop();
    assert!(log.contains("192.0.2.9"), "refusals are logged with the client: {log}");

    // Without the option, such headers mean nothing.
    let server = Server::start(dir.path());
    let bound = sas(&["--ip", "192.0.2.7"]);
    assert_eq!(request("GET", &bound, "X-Forwarded-For: 192.0.2.7\r\n", b"").status, 403);
    server.stop();
}

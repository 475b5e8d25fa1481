//! Sources of options and their precedence.

use super::*;

/// Loads a configuration from flags, variables and the text of a file.
fn load(flags: &[&str], variables: &[(&str, &str)], file: Option<&str>) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lazuli.toml");
    let path = file.map(|text| {
        std::fs::write(&path, text).unwrap();
        path.as_path()
    });
    let arguments = std::iter::once("lazuli").chain(flags.iter().copied());
    let flags = OnlyOptions::try_parse_from(arguments).map_err(|error| error.to_string())?.layer;
    let variable = |name: &str| {
        variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
    };
    Config::load(flags, path, variable).map_err(|error| error.to_string())
}

#[test]
fn flags_override_variables_which_override_the_file_which_overrides_the_defaults() {
    let variable: &[(&str, &str)] = &[("LAZULI_BLOB_PORT", "2")];
    let file = Some("blob-port = 3");
    for (flags, variables, file, port) in [
        (&["--blob-port", "1"][..], variable, file, 1),
        (&[], variable, file, 2),
        (&[], &[], file, 3),
        (&[], &[], None, 10_000),
        (&["--blob-port", "1"], &[], file, 1),
        (&[], variable, None, 2),
        (&[], &[("LAZULI_BLOB_PORT", "")], file, 3),
    ] {
        let config = load(flags, variables, file).unwrap();
        assert_eq!(config.services[0].1.port(), port, "{flags:?} {variables:?} {file:?}");
    }
}

/// Every option with a value that is not its default, and the TOML of that value.
const OPTIONS: &[(&str, &str, &str)] = &[
    ("data", "/d", "'/d'"),
    ("in-memory", "true", "true"),
    ("memory-bytes", "1MiB", "'1MiB'"),
    ("host", "::1", "'::1'"),
    ("blob-host", "::1", "'::1'"),
    ("queue-host", "::1", "'::1'"),
    ("table-host", "::1", "'::1'"),
    ("file-host", "::1", "'::1'"),
    ("smb-host", "::1", "'::1'"),
    ("console-host", "0.0.0.0", "'0.0.0.0'"),
    ("blob-port", "off", "'off'"),
    ("queue-port", "1", "1"),
    ("table-port", "2", "2"),
    ("file-port", "3", "3"),
    ("dfs-port", "off", "'off'"),
    ("smb-port", "off", "'off'"),
    ("smb-unencrypted", "true", "true"),
    ("smb-require-signing", "true", "true"),
    ("smb-enforce-permissions", "true", "true"),
    ("console-port", "off", "'off'"),
    ("console", "false", "false"),
    ("console-name", "a.example;b.example", "['a.example', 'b.example']"),
    ("console-password-file", "/p", "'/p'"),
    ("console-plaintext", "true", "true"),
    ("account", "abc:AAAA;abd:BBBB:CCCC", "['abc:AAAA', 'abd:BBBB:CCCC']"),
    ("account-file", "/a", "'/a'"),
    ("create", "blob:aaa,bbb share:sss", "['blob:aaa,bbb', 'share:sss']"),
    ("seed", "/s", "'/s'"),
    ("host-suffix", "a.example;b.example", "['a.example', 'b.example']"),
    ("trusted-proxy", "10.0.0.1;fd00::/8", "['10.0.0.1', 'fd00::/8']"),
    ("tls-cert", "/c", "'/c'"),
    ("tls-key", "/k", "'/k'"),
    ("tls-self-signed", "true", "true"),
    ("oidc-issuer", "https://i.example", "'https://i.example'"),
    ("oidc-audience", "a;b", "['a', 'b']"),
    ("copy-source-allow", "10.0.0.0/8;store.example:81;*", "['10.0.0.0/8', 'store.example:81', '*']"),
    ("log", "json", "'json'"),
    ("log-level", "warn", "'warn'"),
    ("access-log", "/l", "'/l'"),
    ("otlp-endpoint", "http://c.example", "'http://c.example'"),
    ("otlp-sample", "0.5", "0.5"),
    ("cache-bytes", "1MiB", "'1MiB'"),
    ("accept-time", "true", "true"),
    ("scrub-rate", "0", "'0'"),
    ("insecure-dev-key", "true", "true"),
];

#[test]
fn every_option_is_a_flag_a_variable_and_a_key_in_the_file() {
    let command = OnlyOptions::command();
    let known: Vec<_> = command.get_arguments().filter_map(|argument| argument.get_long()).collect();
    assert_eq!(known, OPTIONS.iter().map(|(option, ..)| *option).collect::<Vec<_>>());
    for (option, value, toml) in OPTIONS {
        let flags = OnlyOptions::try_parse_from(["lazuli", &format!("--{option}={value}")]).unwrap().layer;
        assert_ne!(flags, Layer::default(), "{option}");
        let name = variable_of(option);
        let variable = |asked: &str| (asked == name).then(|| (*value).to_owned());
        assert_eq!(Layer::from_environment(&variable).unwrap(), flags, "{name}");
        assert_eq!(toml::from_str::<Layer>(&format!("{option} = {toml}")).unwrap(), flags, "{option}");
        assert_eq!(Layer::default().or(flags.clone()), flags, "{option}");
        assert_eq!(flags.clone().or(Layer::default()), flags, "{option}");
    }
}

#[test]
fn empty_configuration_has_all_defaults() {
    let config = load(&[], &[], None).unwrap();
    let local = |port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    assert_eq!(
        config,
        Config {
            data: Storage::Directory("lazuli-data".into()),
            services: ServiceKind::ALL.into_iter().zip((10_000..).map(local)).collect(),
            smb: Some(local(10_445)),
            smb_unencrypted: false,
            smb_require_signing: false,
            smb_enforce_permissions: false,
            console: Some(local(10_080)),
            console_page: ConsolePage { is_on: true, names: vec![], password: None, is_plaintext: false },
            accounts: vec![],
            create: vec![],
            seed: None,
            host_suffixes: vec![],
            trusted_proxies: vec![],
            tls: TlsSource::Off,
            oidc: None,
            copy_source_allow: vec![Allow::Public],
            log: LogFormat::Text,
            log_level: "info".into(),
            access_log: None,
            traces: None,
            cache_bytes: None,
            accept_time: false,
            scrub_rate: DEFAULT_SCRUB_RATE,
            insecure_dev_key: false,
        }
    );
}

#[test]
fn each_service_can_have_an_address_of_its_own() {
    let flags =
        ["--host", "10.0.0.1", "--queue-host", "127.0.0.1", "--console-host", "::1", "--smb-port=off"];
    let config = load(&flags, &[], None).unwrap();
    let hosts: Vec<_> = config.services.iter().map(|(_, address)| address.ip().to_string()).collect();
    assert_eq!(hosts, ["10.0.0.1", "127.0.0.1", "10.0.0.1", "10.0.0.1"]);
    assert_eq!(config.console.unwrap().to_string(), "[::1]:10080");
    assert_eq!(config.exposed_host().unwrap().to_string(), "10.0.0.1");
    let config = load(&["--console-host", "0.0.0.0"], &[], None).unwrap();
    assert_eq!(config.exposed_host(), None, "the console does not count");
    let config = load(&["--smb-host", "0.0.0.0"], &[], None).unwrap();
    assert_eq!(config.exposed_host().unwrap().to_string(), "0.0.0.0");
}

#[test]
fn booleans_may_be_given_as_numbers_and_words() {
    for (value, expected) in
        [("1", true), ("yes", true), ("on", true), ("true", true), ("0", false), ("no", false)]
    {
        let config = load(&[], &[("LAZULI_INSECURE_DEV_KEY", value)], None).unwrap();
        assert_eq!(config.insecure_dev_key, expected, "{value}");
    }
    assert!(load(&[], &[("LAZULI_INSECURE_DEV_KEY", "maybe")], None).is_err());
}

#[test]
fn variables_that_no_option_has_are_reported_with_the_right_spelling() {
    let names =
        ["LAZULI_BLOBPORT", "LAZULI_BLOB_PORT", "LAZULI_CONFIG", "LAZULI_NONSENSE", "PATH", "lazuli_data"];
    let warnings = unknown_variables(names.map(str::to_owned));
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("LAZULI_BLOBPORT") && warnings[0].ends_with("write LAZULI_BLOB_PORT"));
    assert!(warnings[1].contains("LAZULI_NONSENSE"), "{warnings:?}");
    assert!(warnings[2].ends_with("write LAZULI_DATA"), "{warnings:?}");
}

#[test]
fn unknown_option_with_underscores_gets_a_hint() {
    let said = load(&[], &[], Some("blob_port = 1")).unwrap_err();
    assert!(said.contains(":1:1: unknown option blob_port: write blob-port"), "{said}");
    assert!(load(&[], &[], Some("blob_sport = 1")).unwrap_err().contains("expected one of"));
}

#[test]
fn accounts_of_a_file_are_read_line_by_line_and_no_error_quotes_a_key() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let accounts = |text: &str| {
        std::fs::write(file.path(), text).unwrap();
        let flags = ["--account", "abc:AAAA", "--account-file", file.path().to_str().unwrap()];
        let names =
            |config: Config| config.accounts.into_iter().map(|account| account.name).collect::<Vec<_>>();
        load(&flags, &[], None).map(names)
    };
    assert_eq!(accounts("# keys\n\n abd:BBBB:CCCC \nabe:DDDD\n").unwrap(), ["abc", "abd", "abe"]);
    let said = accounts("abd:BBBB\nabe:secret*\n").unwrap_err();
    assert!(said.contains(":2: a key of account abe is not Base64") && !said.contains("secret"), "{said}");
    assert!(accounts("abc:BBBB").unwrap_err().contains("configured twice"));
    assert!(
        load(&["--account-file", "/no/such"], &[], None).unwrap_err().contains("--account-file /no/such")
    );
}

#[test]
fn source_of_higher_precedence_can_switch_an_option_off_again() {
    let file = Some("tls-self-signed = true");
    assert_eq!(load(&[], &[], file).unwrap().tls, TlsSource::SelfSigned);
    assert_eq!(load(&["--tls-self-signed"], &[], None).unwrap().tls, TlsSource::SelfSigned);
    assert_eq!(load(&["--tls-self-signed=false"], &[], file).unwrap().tls, TlsSource::Off);
    assert_eq!(load(&[], &[("LAZULI_TLS_SELF_SIGNED", "false")], file).unwrap().tls, TlsSource::Off);
}

#[test]
fn azurite_accounts_have_lower_precedence_than_lazuli_account_and_higher_than_the_file() {
    let names = |flags: &[&str], variables: &[(&str, &str)], file| {
        let accounts = load(flags, variables, file).unwrap().accounts;
        accounts.into_iter().map(|account| (account.name, account.keys.len())).collect::<Vec<_>>()
    };
    let azurite = ("AZURITE_ACCOUNTS", "account1:AAAA:BBBB;account2:CCCC;");
    let both = [("account1".to_owned(), 2), ("account2".to_owned(), 1)];
    let file = Some("account = ['fromfile:AAAA']");
    assert_eq!(names(&[], &[azurite], None), both);
    assert_eq!(names(&[], &[azurite], file), both);
    assert_eq!(names(&[], &[azurite, ("LAZULI_ACCOUNT", "ours:AAAA")], None), [("ours".to_owned(), 1)]);
    assert_eq!(names(&["--account", "flag1:AAAA"], &[azurite], file), [("flag1".to_owned(), 1)]);
    let repeated = ["--account", "flag1:AAAA", "--account", "flag2:AAAA"];
    assert_eq!(names(&repeated, &[], None), [("flag1".to_owned(), 1), ("flag2".to_owned(), 1)]);
}

#[test]
fn error_names_the_source_and_the_option() {
    for (flags, variables, file, expected) in [
        (&[][..], &[][..], Some("blob-prot = 1"), "lazuli.toml:1:1: unknown field `blob-prot`"),
        (&[], &[], Some("config = 'x'"), "unknown field `config`"),
        (&[], &[], Some("blob-port = 70000"), "neither a port nor off"),
        (&[], &[], Some("log = 'xml'"), "unknown variant `xml`"),
        (&[], &[("LAZULI_HOST", "nowhere")], None, "LAZULI_HOST: invalid value"),
        (&[], &[("AZURITE_ACCOUNTS", "abc")], None, "AZURITE_ACCOUNTS: account abc has no key"),
        (&["--dfs-port", "0"], &[], None, "--dfs-port: not served by this version"),
        (&["--tls-cert", "c"], &[], None, "must be set together"),
        (&["--tls-key", "c", "--tls-cert", "c", "--tls-self-signed"], &[], None, "cannot be combined"),
        (&["--copy-source-allow", "10.0.0.0/99"], &[], None, "10.0.0.0/99"),
        (&["--oidc-audience", "a"], &[], None, "requires --oidc-issuer"),
        (&["--log-level", "loud=very"], &[], None, "--log-level loud=very"),
        (&["--log-level", "info,loud"], &[], None, "loud is neither a level"),
        (&["--account", "abc:AAAA;abc:BBBB"], &[], None, "abc is configured twice"),
    ] {
        let refused = load(flags, variables, file).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
    let missing = Config::load(Layer::default(), Some(Path::new("/no/such.toml")), |_| None).unwrap_err();
    assert!(missing.to_string().starts_with("/no/such.toml: "), "{missing}");
    let missing = |name: &str| (name == "LAZULI_CONFIG").then(|| "/no/such.toml".to_owned());
    assert!(Config::load(Layer::default(), None, missing).is_err());
}

#[test]
fn host_suffix_is_lower_case_without_outer_dots() {
    let config = load(&["--host-suffix", ".Store.Example.com.;b.example"], &[], None).unwrap();
    assert_eq!(config.host_suffixes, ["store.example.com", "b.example"]);
}

#[test]
fn no_error_contains_a_key() {
    const KEY: &str = "c2VjcmV0a2V5";
    for account in ["Photos:KEY", "photos:KEY:KEY:KEY", "photos:KEY*", "KEY", "photos=KEY", "photos:k:KEY"] {
        let account = account.replace("KEY", KEY);
        let flags = ["--account", &account];
        let variables = [("LAZULI_ACCOUNT", account.as_str())];
        let azurite = [("AZURITE_ACCOUNTS", account.as_str())];
        let files = ["account = ['ACCOUNT']", "log = 'text'\naccount = 'ACCOUNT'", "account = ACCOUNT"]
            .map(|text| text.replace("ACCOUNT", &account));
        let mut refusals = vec![
            load(&flags, &[], None).unwrap_err(),
            load(&[], &variables, None).unwrap_err(),
            load(&[], &azurite, None).unwrap_err(),
        ];
        refusals.extend(files.iter().map(|file| load(&[], &[], Some(file)).unwrap_err()));
        for (source, refusal) in
            ["--account", "LAZULI_", "AZURITE_", ".toml:1:1", ".toml:2:1", ".toml:1:1"].iter().zip(&refusals)
        {
            assert!(refusal.contains(source) && !refusal.contains(KEY), "{refusal}");
        }
    }
    for misplaced in ["account = { photos = 'KEY' }", "account = ['photos:KEY'", "account = [['photos:KEY']]"]
    {
        let refusal = load(&[], &[], Some(&misplaced.replace("KEY", KEY))).unwrap_err();
        assert!(!refusal.contains(KEY), "{refusal}");
    }
}

#[test]
fn in_memory_excludes_the_options_of_a_data_directory() {
    let in_memory = |flags: &[&str]| {
        let flags: Vec<_> = ["--in-memory"].into_iter().chain(flags.iter().copied()).collect();
        load(&flags, &[], None).map(|config| config.data)
    };
    assert_eq!(in_memory(&[]).unwrap(), Storage::Memory { max_bytes: None });
    assert_eq!(in_memory(&["--memory-bytes=1MiB"]).unwrap(), Storage::Memory { max_bytes: Some(1 << 20) });
    for option in ["--data=/d", "--cache-bytes=1MiB", "--scrub-rate=0"] {
        let refused = in_memory(&[option]).unwrap_err();
        let name = option.split('=').next().unwrap();
        assert_eq!(refused, format!("--in-memory cannot be combined with {name}"));
    }
    let variable: &[_] = &[("LAZULI_DATA", "/d")];
    assert!(load(&["--in-memory"], variable, None).is_err());
    let data = load(&["--in-memory=false"], variable, None).unwrap().data;
    assert_eq!(data, Storage::Directory("/d".into()));
    assert_eq!(load(&["--memory-bytes=1MiB"], &[], None).unwrap_err(), "--memory-bytes requires --in-memory");

    // Commands that need a directory ignore in-memory.
    let variable = |name: &str| (name == "LAZULI_IN_MEMORY").then(|| "true".to_owned());
    assert_eq!(Config::directory(Some("/d".into()), None, variable).unwrap(), Path::new("/d"));
    assert_eq!(Config::directory(None, None, variable).unwrap(), Path::new("lazuli-data"));
}

#[test]
fn account_file_without_accounts_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "# no account yet\n\n").unwrap();
    let refused = load(&["--account-file", file.path().to_str().unwrap()], &[], None).unwrap_err();
    assert!(refused.contains("no account in it"), "{refused}");
}

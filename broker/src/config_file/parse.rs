//! Reads a config and says what is wrong with it in the words of the manual: by key, without the names of types.

use serde_saphyr::Error;
use tidemill_contract::config::Config;

/// A text that is no config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// Names the key.
    pub(super) message: String,
    /// Line and column, from 1; none if the message has them or nobody knows them.
    pub(super) place: Option<(u64, u64)>,
}

/// Reads YAML, or JSON, which is YAML, too.
pub(super) fn parse(text: &str) -> Result<Config, Fault> {
    let mut path = String::new();
    let options = serde_saphyr::options! { with_snippet: false };
    let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            path = error.path().to_string();
            error.into_inner()
        })
    });
    parsed.map_err(|error| {
        let error = error.without_snippet();
        // What the path cannot name, such as a key that is there twice, is a question mark in it.
        match explain(path.trim_end_matches('?').trim_matches('.'), error) {
            Some(message) => {
                let place = error.location().map(|location| (location.line(), location.column()));
                Fault { message, place }
            }
            None => Fault { message: error.to_string(), place: None },
        }
    })
}

/// None if the error is about YAML and not about what is in it.
fn explain(path: &str, error: &Error) -> Option<String> {
    let subject = if path.is_empty() { "the config" } else { path };
    if let Error::InvalidScalar { ty, .. } = error {
        return Some(format!("{subject}: expected {}", expected_words(ty)));
    }
    if let Error::Unexpected { expected, .. } = error {
        return Some(format!("{subject}: expected {}", expected_words(expected)));
    }
    if let Error::SerdeInvalidType { unexpected, expected, .. }
    | Error::SerdeInvalidValue { unexpected, expected, .. } = error
    {
        return Some(format!(
            "{subject}: expected {}, found {}",
            expected_words(expected),
            found_words(unexpected)
        ));
    }
    if let Error::MultipleDocuments { .. } = error {
        return Some("a second document begins, expected is one".to_owned());
    }
    if let Error::NullIntoString { .. } = error {
        return Some(format!("{subject}: expected text, found nothing"));
    }
    if let Error::SerdeUnknownVariant { variant, expected, .. } = error {
        return Some(format!("{subject} is '{variant}', allowed is {}", expected.join(", ")));
    }
    if let Error::SerdeUnknownField { field, expected, .. } = error {
        return Some(format!("there is no key {}, there are {}", join(path, field), expected.join(", ")));
    }
    if let Error::SerdeMissingField { field, .. } = error {
        return Some(format!("{} is missing", join(path, field)));
    }
    if let Error::DuplicateMappingKey { key: Some(key), .. } = error {
        return Some(format!("{} is there twice", join(path, key)));
    }
    None
}

/// `key` below `path`, which may name it already.
fn join(path: &str, key: &str) -> String {
    match path.strip_suffix(key) {
        Some(above) if above.is_empty() || above.ends_with('.') => path.to_owned(),
        Some(_) | None if path.is_empty() => key.to_owned(),
        Some(_) | None => format!("{path}.{key}"),
    }
}

fn expected_words(expected: &str) -> String {
    let words = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" => "a whole number from 0 on",
        "i16" => "a whole number from -32768 to 32767",
        "boolean" => "true or false",
        "sequence start" | "a sequence" => "a list",
        "mapping start" | "a map" => "keys with values below it",
        "a string" | "path string" | "string" => "text",
        "scalar" | "string scalar" => "one value",
        _ if expected.starts_with("struct ") => "keys with values below it",
        _ => expected,
    };
    words.to_owned()
}

fn found_words(found: &str) -> String {
    let words = match found {
        "sequence" => "a list",
        "map" => "keys with values",
        "unit value" | "null" => "nothing",
        _ => found,
    };
    words.replace("string ", "the text ").replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_by_its_key_and_in_the_words_of_the_manual() {
        let cases = [
            (
                "limits: {connections: many}",
                "limits.connections: expected a whole number from 0 to 4294967295",
            ),
            (
                "kafka: {bootstrapServers: 'k:1', partitions: 70000}",
                "kafka.partitions: expected a whole number from 0 to 65535",
            ),
            ("embedded: {partitions: -1}", "embedded.partitions: expected a whole number from 0 to 65535"),
            ("threads: [1]", "threads: expected one value"),
            ("sessions: 5", "sessions: expected keys with values below it"),
            ("sessions: [5]", "sessions: expected keys with values below it"),
            ("listeners: {name: a}", "listeners: expected a list"),
            ("listeners: [5]", "listeners[0]: expected keys with values below it"),
            ("member: {a: b}", "member: expected one value"),
            ("cluster: [a]", "cluster: expected one value"),
            (
                "auth: {anonymous: \"yes\"}",
                "auth.anonymous: expected true or false, without quotes, found the text \"yes\"",
            ),
            ("auth: {anonymous: maybe}", "auth.anonymous: expected true or false"),
            ("coordination: kubernets", "coordination is 'kubernets', allowed is local, kubernetes"),
            (
                "listeners: [{name: a, protocol: mqtts, address: b}]",
                "listeners[0].protocol is 'mqtts', allowed is mqtt",
            ),
            ("listeners: [{name: a, protocol: mqtt}]", "listeners[0].address is missing"),
            (
                "limits: {mailboxMesages: 5}",
                "there is no key limits.mailboxMesages, there are maximumPacketBytes, ",
            ),
            ("limit: {}", "there is no key limit, there are member, cluster, "),
            ("limits: {connections: 1, connections: 2}", "limits.connections is there twice"),
            ("member: a\nmember: b", "member is there twice"),
            ("member: a\n---\nmember: b", "a second document begins, expected is one"),
            ("- a", "the config: expected keys with values below it"),
        ];

        for (text, told) in cases {
            let fault = parse(text).unwrap_err();
            assert!(fault.message.starts_with(told), "{text}: {}", fault.message);
            assert!(fault.place.is_some(), "{text}");
            assert!(!fault.message.contains("struct") && !fault.message.contains('`'), "{}", fault.message);
        }
    }

    #[test]
    fn the_place_is_the_line_and_column_and_yaml_that_is_none_is_told_with_it() {
        let fault = parse("member: a\nlimits:\n  connections: many\n").unwrap_err();
        assert_eq!(fault.place, Some((3, 16)));

        let fault = parse("member: a: b\n").unwrap_err();
        assert!(fault.message.contains("line 1, column 10"), "{}", fault.message);
    }
}

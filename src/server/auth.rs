//! Who may come in: tokens, and the checks on a request before anything is upgraded.
//!
//! Pure but for the making of tokens, any thread. Every lock file has a token of its own, so the
//! credential tells the family of the agent. Tokens are compared in constant time, are accepted in
//! headers alone, and never get into a log: `Debug` hides them.

use std::collections::BTreeMap;
use std::io;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use rand::TryRng;
use subtle::ConstantTimeEq;

use crate::agents::mcp::Family;

/// A version-4 UUID from the operating system's generator.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// # Errors
    /// When the operating system has no randomness to give.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; 16];
        rand::rngs::SysRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()))
    }

    /// The secret itself, for the lock file.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    fn is(&self, offered: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(offered).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// One token for each family that is served. A restart keeps them, so that agents find back.
#[derive(Debug, Clone)]
pub struct Credentials(BTreeMap<Family, Token>);

impl Credentials {
    /// # Errors
    /// See `Token::generate`.
    pub fn generate(families: impl IntoIterator<Item = Family>) -> io::Result<Self> {
        let tokens = families.into_iter().map(|family| Ok((family, Token::generate()?)));
        Ok(Self(tokens.collect::<io::Result<_>>()?))
    }

    /// Tokens for these families: the known ones as they are, new ones for the others.
    ///
    /// # Errors
    /// See `Token::generate`.
    pub fn for_families(&self, families: impl IntoIterator<Item = Family>) -> io::Result<Self> {
        let tokens = families.into_iter().map(|family| {
            let known = self.0.get(&family).cloned();
            Ok((family, known.map_or_else(Token::generate, Ok)?))
        });
        Ok(Self(tokens.collect::<io::Result<_>>()?))
    }

    #[must_use]
    pub fn token(&self, family: Family) -> Option<&Token> {
        self.0.get(&family)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Family, &Token)> {
        self.0.iter().map(|(family, token)| (*family, token))
    }
}

/// The header a family's agents send their token in.
#[must_use]
pub fn header(family: Family) -> HeaderName {
    HeaderName::from_static(match family {
        Family::Pi => "x-pi-ide-authorization",
        Family::Claude => "x-claude-code-ide-authorization",
    })
}

/// Why a request is turned away. Says nothing an attacker could use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Not addressed to us by the name of this machine: a name that was made to point here.
    Host,
    /// Only browsers send an Origin; no page has business here.
    Origin,
    /// No token, a wrong one, or more than one.
    Token,
}

impl Refusal {
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Refusal::Host | Refusal::Origin => StatusCode::FORBIDDEN,
            Refusal::Token => StatusCode::UNAUTHORIZED,
        }
    }
}

/// Decides about a request by its target and headers; `port` is ours.
///
/// # Errors
/// The first reason to refuse it.
pub fn admit(
    uri: &Uri,
    headers: &HeaderMap,
    port: u16,
    credentials: &Credentials,
) -> Result<Family, Refusal> {
    let ours = |host: &[u8]| {
        let names = ["127.0.0.1", "localhost"];
        names.iter().any(|name| host.eq_ignore_ascii_case(format!("{name}:{port}").as_bytes()))
    };
    // A target with an authority of its own goes before the header.
    let named = uri.authority().is_none_or(|authority| ours(authority.as_str().as_bytes()));
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if named && ours(host.as_bytes()) => {}
        _ => return Err(Refusal::Host),
    }
    if headers.contains_key(ORIGIN) {
        return Err(Refusal::Origin);
    }
    // All that any family's header says; more than one is a contradiction, even of right ones.
    let mut offered = [Family::Pi, Family::Claude].into_iter().flat_map(|family| {
        headers.get_all(header(family)).iter().map(move |value| (family, value))
    });
    match (offered.next(), offered.next()) {
        (Some((family, value)), None) => match credentials.token(family) {
            Some(token) if token.is(value.as_bytes()) => Ok(family),
            _ => Err(Refusal::Token),
        },
        _ => Err(Refusal::Token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    const PORT: u16 = 4321;

    struct Case {
        credentials: Credentials,
        headers: HeaderMap,
    }

    impl Case {
        fn new() -> Self {
            let credentials = Credentials::generate([Family::Pi, Family::Claude]).unwrap();
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("127.0.0.1:4321"));
            Self { credentials, headers }
        }

        fn with(mut self, name: impl axum::http::header::IntoHeaderName, value: &str) -> Self {
            self.headers.append(name, HeaderValue::from_str(value).unwrap());
            self
        }

        fn with_token(self, family: Family) -> Self {
            let token = self.secret(family);
            self.with(header(family), &token)
        }

        fn secret(&self, family: Family) -> String {
            self.credentials.token(family).unwrap().secret().to_owned()
        }

        fn admit(&self) -> Result<Family, Refusal> {
            admit(&Uri::from_static("/"), &self.headers, PORT, &self.credentials)
        }
    }

    #[test]
    fn a_token_is_a_random_uuid_and_does_not_show() {
        let (one, two) = (Token::generate().unwrap(), Token::generate().unwrap());
        assert_ne!(one, two);
        assert_eq!(uuid::Uuid::parse_str(one.secret()).unwrap().get_version_num(), 4);
        assert_eq!(format!("{one:?}"), "Token(…)");
    }

    #[test]
    fn the_token_names_the_family() {
        for family in [Family::Pi, Family::Claude] {
            assert_eq!(Case::new().with_token(family).admit(), Ok(family));
        }
    }

    #[test]
    fn anything_but_the_one_right_token_is_refused() {
        let pi = || header(Family::Pi);
        let right = Case::new().secret(Family::Pi);
        let refused = [
            Case::new(),
            Case::new().with(pi(), ""),
            Case::new().with(pi(), &right),
            Case::new().with_token(Family::Pi).with_token(Family::Pi),
            Case::new().with_token(Family::Pi).with_token(Family::Claude),
            Case::new().with_token(Family::Pi).with(header(Family::Claude), "wrong"),
            Case::new().with("authorization", &format!("Bearer {right}")),
        ];
        for (number, case) in refused.iter().enumerate() {
            assert_eq!(case.admit(), Err(Refusal::Token), "case {number}");
        }
        let case = Case::new();
        let token = case.secret(Family::Pi);
        for wrong in [&token[1..], &format!("{token}x"), &token.to_uppercase()] {
            let mut headers = case.headers.clone();
            headers.insert(pi(), HeaderValue::from_str(wrong).unwrap());
            let answer = admit(&Uri::from_static("/"), &headers, PORT, &case.credentials);
            // A UUID of digits alone has no other case.
            assert!(wrong == token || answer == Err(Refusal::Token), "{wrong}");
        }
        let crossed = Case::new();
        let token = crossed.secret(Family::Claude);
        assert_eq!(crossed.with(pi(), &token).admit(), Err(Refusal::Token));
    }

    #[test]
    fn any_origin_is_refused_even_with_the_right_token() {
        for origin in ["https://evil.example", "null", "http://localhost:4321", ""] {
            let case = Case::new().with_token(Family::Pi).with(ORIGIN, origin);
            assert_eq!(case.admit(), Err(Refusal::Origin), "{origin}");
        }
    }

    #[test]
    fn only_this_machine_with_our_port_is_our_name() {
        let with_host = |host: &str| {
            let mut case = Case::new().with_token(Family::Pi);
            case.headers.insert(HOST, HeaderValue::from_str(host).unwrap());
            case.admit()
        };
        assert_eq!(with_host("LOCALHOST:4321"), Ok(Family::Pi));
        for host in ["localhost", "127.0.0.1:80", "evil.example:4321", "127.0.0.1:4321.evil", ""] {
            assert_eq!(with_host(host), Err(Refusal::Host), "{host}");
        }
        let twice = Case::new().with_token(Family::Pi).with(HOST, "127.0.0.1:4321");
        assert_eq!(twice.admit(), Err(Refusal::Host));
        let case = Case::new().with_token(Family::Pi);
        let uri = Uri::from_static("http://evil.example/");
        assert_eq!(admit(&uri, &case.headers, PORT, &case.credentials), Err(Refusal::Host));
    }
}

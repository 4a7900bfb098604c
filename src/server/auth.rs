//! Who may come in: tokens, and the checks on a request before anything is upgraded.
//!
//! Pure but for the making of tokens, any thread. Every lock file has a token of its own, so the
//! credential tells the family of the agent. Tokens are compared in constant time, are accepted
//! only in the place where the family's agents put theirs, and never get into a log: `Debug` hides
//! them.

use std::collections::BTreeMap;
use std::io;

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
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

/// The header a family's agents send their token in. Amp has none: its token is in the query.
#[must_use]
pub fn header(family: Family) -> HeaderName {
    match family {
        Family::Pi => HeaderName::from_static("x-pi-ide-authorization"),
        Family::Claude => HeaderName::from_static("x-claude-code-ide-authorization"),
        Family::Gemini | Family::Qwen | Family::Copilot | Family::Amp => AUTHORIZATION,
    }
}

/// Where a token was offered; each place belongs to some families and to no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Pi,
    Claude,
    /// `Authorization: Bearer …`
    Bearer,
    /// `Authorization: Nonce …`
    Nonce,
    /// `?auth=…`
    Query,
    /// `Authorization` of a kind that nobody here uses.
    Strange,
}

impl Place {
    fn families(self) -> &'static [Family] {
        match self {
            Place::Pi => &[Family::Pi],
            Place::Claude => &[Family::Claude],
            Place::Bearer => &[Family::Gemini, Family::Qwen],
            Place::Nonce => &[Family::Copilot],
            Place::Query => &[Family::Amp],
            Place::Strange => &[],
        }
    }
}

/// Everything in a request that looks like a token.
fn offered(uri: &Uri, headers: &HeaderMap) -> Vec<(Place, Vec<u8>)> {
    let mut out = Vec::new();
    for (place, family) in [(Place::Pi, Family::Pi), (Place::Claude, Family::Claude)] {
        let values = headers.get_all(header(family)).iter();
        out.extend(values.map(|value| (place, value.as_bytes().to_vec())));
    }
    for value in headers.get_all(AUTHORIZATION) {
        let value = value.as_bytes();
        let space = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
        let (scheme, rest) = value.split_at(space);
        let place = if scheme.eq_ignore_ascii_case(b"bearer") {
            Place::Bearer
        } else if scheme.eq_ignore_ascii_case(b"nonce") {
            Place::Nonce
        } else {
            Place::Strange
        };
        out.push((place, rest.trim_ascii().to_vec()));
    }
    let query = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let tokens = query.filter(|(name, _)| name == "auth");
    out.extend(tokens.map(|(_, value)| (Place::Query, value.as_bytes().to_vec())));
    out
}

/// The way a connection came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// This machine's loopback, at our port.
    Loopback(u16),
    /// A socket in a directory that only the user can enter. Copilot's alone.
    Unix,
}

impl From<u16> for Door {
    fn from(port: u16) -> Self {
        Door::Loopback(port)
    }
}

impl Door {
    fn serves(self, family: Family) -> bool {
        (self == Door::Unix) == (family == Family::Copilot)
    }
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

/// Decides about a request by the door it came through, its target and its headers.
///
/// # Errors
/// The first reason to refuse it.
pub fn admit(
    uri: &Uri,
    headers: &HeaderMap,
    door: impl Into<Door>,
    credentials: &Credentials,
) -> Result<Family, Refusal> {
    let door = door.into();
    if !host_is_ours(uri, headers, door) {
        return Err(Refusal::Host);
    }
    if headers.contains_key(ORIGIN) {
        return Err(Refusal::Origin);
    }
    let mut offered = offered(uri, headers).into_iter();
    // More than one is a contradiction, even of right ones.
    let (Some((place, value)), None) = (offered.next(), offered.next()) else {
        return Err(Refusal::Token);
    };
    let mut admitted = None;
    for family in place.families() {
        // Every candidate is compared, so that the time tells nothing.
        let right = credentials.token(*family).is_some_and(|token| token.is(&value));
        if right && door.serves(*family) {
            admitted = Some(*family);
        }
    }
    admitted.ok_or(Refusal::Token)
}

fn host_is_ours(uri: &Uri, headers: &HeaderMap, door: Door) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    // Nobody is led to a socket file by a name that points here; clients put in what they like.
    let Door::Loopback(port) = door else { return true };
    let ours = |host: &[u8]| {
        let names = ["127.0.0.1", "localhost"];
        names.iter().any(|name| host.eq_ignore_ascii_case(format!("{name}:{port}").as_bytes()))
    };
    // A target with an authority of its own goes before the header.
    uri.authority().is_none_or(|authority| ours(authority.as_str().as_bytes()))
        && ours(host.as_bytes())
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

    fn all() -> Credentials {
        Credentials::generate([
            Family::Pi,
            Family::Claude,
            Family::Gemini,
            Family::Qwen,
            Family::Copilot,
            Family::Amp,
        ])
        .unwrap()
    }

    #[test]
    fn each_token_is_right_in_its_own_place_alone() {
        let credentials = all();
        for family in credentials.iter().map(|(family, _)| family) {
            let token = credentials.token(family).unwrap().secret();
            for (place, target, name, value) in [
                (Place::Pi, "/".to_owned(), "x-pi-ide-authorization", token.to_owned()),
                (Place::Claude, "/".into(), "x-claude-code-ide-authorization", token.into()),
                (Place::Bearer, "/mcp".into(), "authorization", format!("Bearer {token}")),
                (Place::Nonce, "/mcp".into(), "authorization", format!("Nonce {token}")),
                (Place::Query, format!("/?auth={token}"), "x-other", String::new()),
                (Place::Strange, "/".into(), "authorization", token.into()),
                (Place::Strange, "/".into(), "authorization", format!("Basic {token}")),
            ] {
                for door in [Door::Loopback(PORT), Door::Unix] {
                    let mut headers = HeaderMap::new();
                    headers.insert(HOST, HeaderValue::from_static("localhost:4321"));
                    headers.insert(name, HeaderValue::from_str(&value).unwrap());
                    let uri: Uri = target.parse().unwrap();
                    let admitted = admit(&uri, &headers, door, &credentials);
                    let right = place.families().contains(&family) && door.serves(family);
                    let expected = if right { Ok(family) } else { Err(Refusal::Token) };
                    assert_eq!(admitted, expected, "{family:?} {place:?} {door:?}");
                }
            }
        }
    }

    #[test]
    fn a_token_in_the_query_and_one_in_a_header_are_one_too_many() {
        let credentials = all();
        let token = |family| credentials.token(family).unwrap().secret().to_owned();
        let uri: Uri = format!("/?auth={}", token(Family::Amp)).parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("127.0.0.1:4321"));
        assert_eq!(admit(&uri, &headers, PORT, &credentials), Ok(Family::Amp));
        let twice: Uri = format!("{uri}&auth={}", token(Family::Amp)).parse().unwrap();
        assert_eq!(admit(&twice, &headers, PORT, &credentials), Err(Refusal::Token));
        let bearer = format!("Bearer {}", token(Family::Gemini));
        headers.insert(AUTHORIZATION, HeaderValue::from_str(&bearer).unwrap());
        assert_eq!(admit(&uri, &headers, PORT, &credentials), Err(Refusal::Token));
        headers.insert(ORIGIN, HeaderValue::from_static("null"));
        assert_eq!(admit(&uri, &headers, Door::Unix, &credentials), Err(Refusal::Origin));
    }
}

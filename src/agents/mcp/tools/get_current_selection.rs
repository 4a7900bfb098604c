//! `getCurrentSelection` and `getLatestSelection`: the active file and what is selected in it.
//!
//! The two are the same here: the last real file and its selection stay current while the user is
//! in a terminal, a picker or a review.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Call, Running, Tool, later, refusal, success};
use crate::agents::mcp::dialect::Shown;
use crate::agents::mcp::rpc::RpcError;

#[derive(Deserialize, JsonSchema)]
struct Arguments {}

pub(super) fn tool(name: &'static str) -> Tool {
    Tool::new::<Arguments>(name, "The file the user is in and the text selected there", start)
}

fn start(call: Call, _: Map<String, Value>) -> Result<Running, RpcError> {
    later(async move {
        let snapshot = call.session.host().snapshot().await;
        match Shown::of(&snapshot) {
            Some(shown) => success(&call.session.dialect().shown(&shown)),
            None => refusal("No file is open, or sharing is off"),
        }
    })
}

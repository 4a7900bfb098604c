//! stub
pub mod agents;
pub mod context;
pub mod files;
pub mod review;
pub mod server;
pub mod sharing;

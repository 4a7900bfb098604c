//! stub
pub mod agents;
pub mod context;
pub mod editor;
pub mod files;
pub mod review;
pub mod server;
pub mod sharing;

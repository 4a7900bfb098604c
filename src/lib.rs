//! stub
pub mod agents;
pub mod context;
pub mod review;

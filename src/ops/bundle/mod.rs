mod image;
mod spec;
mod user;

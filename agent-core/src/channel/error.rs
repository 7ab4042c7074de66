//! Why a word did not reach init, or its answer not us.

use gpunion_protocol::guest::BadFrame;

#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the guest's init is not connected")]
    NotConnected,
    #[error("the guest's init does not read; {0} words wait for it")]
    Full(usize),
    #[error(transparent)]
    Frame(#[from] BadFrame),
    #[error("the control channel: {0}")]
    Io(#[from] std::io::Error),
}

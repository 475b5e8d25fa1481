//! The error codes of all services: one table from a code to its wire name, status and message.
//!
//! The name on the wire is the name of the variant. The status is the usual one; where the context requires
//! another (`ConditionNotMet` as 304, `InvalidAuthenticationInfo` as 401), the [`Refusal`](super::Refusal)
//! overrides it.

use http::StatusCode;

macro_rules! error_codes {
    ($($status:ident { $($code:ident: $message:literal,)+ })+) => {
        /// Why a request was refused, as the protocol names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[doc = $message] $code,)+)+
        }

        impl ErrorCode {
            /// All codes, by status.
            pub const ALL: &'static [Self] = &[$($(Self::$code,)+)+];

            /// Returns the name on the wire, used in `x-ms-error-code` and in the body.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$code => stringify!($code),)+)+ }
            }

            /// Returns the usual status.
            pub const fn status(self) -> StatusCode {
                match self { $($(Self::$code)|+ => StatusCode::$status,)+ }
            }

            /// Returns the default message.
            pub const fn message(self) -> &'static str {
                match self { $($(Self::$code => $message,)+)+ }
            }
        }
    };
}

// Some clients compare the text of `InvalidResourceName`, `OutOfRangeInput` and a few others, so these have
// the exact words of the cloud service, including a misspelling. Messages about leases mention blobs;
// `Refusal::lease` replaces that word for other resources.
error_codes! {
    BAD_REQUEST {
        // Common.
        ConditionHeadersNotSupported: "Condition headers are not supported by this operation.",
        EmptyMetadataKey: "The key of one of the metadata pairs is empty.",
        InvalidHeaderValue: "The value for one of the HTTP headers is not in the correct format.",
        InvalidHttpVerb: "The HTTP verb is not recognised.",
        InvalidInput: "One of the request inputs is not valid.",
        InvalidMd5: "The MD5 value specified in the request is invalid. MD5 value must be 128 bits and base64 encoded.",
        InvalidMetadata: "The metadata specified is invalid. It has characters that are not permitted.",
        InvalidQueryParameterValue: "Value for one of the query parameters specified in the request URI is invalid.",
        InvalidResourceName: "The specifed resource name contains invalid characters.",
        InvalidUri: "The requested URI does not represent any resource on the server.",
        InvalidXmlDocument: "XML specified is not syntactically valid.",
        InvalidXmlNodeValue: "The value of one of the XML nodes in the request body is not in the correct format.",
        Md5Mismatch: "The MD5 value specified in the request did not match with the MD5 value calculated by the server.",
        MetadataTooLarge: "The metadata is larger than the maximum size permitted.",
        MissingRequiredHeader: "An HTTP header that's mandatory for this request is not specified.",
        MissingRequiredQueryParameter: "A query parameter that's mandatory for this request is not specified.",
        MissingRequiredXmlNode: "An XML node that's mandatory is missing from the request body.",
        MultipleConditionHeadersNotSupported: "Multiple condition headers are not supported.",
        OutOfRangeInput: "One of the request inputs is out of range.",
        OutOfRangeQueryParameterValue: "One of the query parameters specified in the request URI is outside the permissible range.",
        RequestUrlFailedToParse: "The URL in the request could not be parsed.",
        UnsatisfiableCondition: "The request includes an unsatisfiable condition.",
        UnsupportedHeader: "One of the headers specified in the request is not supported.",
        UnsupportedQueryParameter: "One of the query parameters specified in the request URI is not supported.",
        UnsupportedXmlNode: "One of the XML nodes specified in the request body is not supported.",
        InvalidAuthenticationInfo: "Authentication information is not given in the correct format. Check the value of Authorization header.",
        // Blob.
        AllBatchSubRequestsShouldBeSameApi: "All subrequests of a batch must be of the same kind.",
        BlockListTooLong: "The block list may not contain more than 50,000 blocks.",
        BothCrc64AndMd5HeaderPresent: "Both x-ms-content-crc64 header and Content-MD5 header are present.",
        BothCrc64AndMd5RangeHeaderPresent: "Both x-ms-range-get-content-crc64 header and x-ms-range-get-content-md5 header are present.",
        BothUserTagsAndSourceTagsCopyPresentException: "Tags may be given or copied from the source, not both.",
        CopyAcrossAccountsNotSupported: "The copy source account and destination account must be the same.",
        Crc64Mismatch: "The CRC64 value specified in the request did not match with the CRC64 value calculated by the server.",
        DuplicateTagNames: "A tag name is specified more than once.",
        EmptyTagName: "The name of one of the tags is empty.",
        ExceedsMaxBatchRequestCount: "The batch operation exceeds maximum number of allowed subrequests.",
        FeatureNotEnabled: "The feature that the operation is part of is not enabled for the account.",
        InvalidBlobOrBlock: "The specified blob or block content is invalid.",
        InvalidBlobTier: "The specified blob tier is invalid.",
        InvalidBlockId: "The specified block ID is invalid. The block ID must be Base64-encoded.",
        InvalidBlockList: "The specified block list is invalid.",
        InvalidOperation: "The operation is not valid on a snapshot.",
        InvalidTags: "The tags specified are invalid: they hold characters that are not permitted.",
        InvalidVersionForPageBlobOperation: "All operations on page blobs require at least version 2009-09-19.",
        MutuallyExclusiveQueryParameters: "Query parameters are specified together of which a request can have one.",
        PreviousSnapshotCannotBeNewer: "The prevsnapshot query parameter value cannot be newer than the snapshot query parameter value.",
        TagsTooLarge: "The tags specified exceed the maximum permissible limit.",
        // Queue.
        InvalidMarker: "The specified marker is invalid.",
        MessageTooLarge: "The message exceeds the maximum allowed size.",
        PopReceiptMismatch: "The specified pop receipt did not match the pop receipt for a dequeued message.",
        // Table.
        CommandsInBatchActOnDifferentPartitions: "All commands in a batch must operate on same entity group.",
        DuplicatePropertiesSpecified: "A property is specified more than one time.",
        EntityTooLarge: "The entity is larger than the maximum allowed size (1MB).",
        HostInformationNotPresent: "The required host information is not present in the request.",
        InvalidDuplicateRow: "The batch request contains multiple changes with same row key. An entity can appear only once in a batch request.",
        InvalidValueType: "The value specified is invalid for its type.",
        PropertiesNeedValue: "The values are not specified for all properties in the entity.",
        PropertyNameInvalid: "The property name is invalid.",
        PropertyNameTooLong: "The property name exceeds the maximum allowed length (255).",
        PropertyValueTooLarge: "The property value exceeds the maximum allowed size (64KB).",
        TooManyProperties: "The entity contains more properties than allowed (252, plus the three system properties).",
        XMethodIncorrectCount: "More than one X-HTTP-Method is specified.",
        XMethodIncorrectValue: "The specified X-HTTP-Method is invalid.",
        XMethodNotUsingPost: "The request uses X-HTTP-Method with an HTTP verb other than POST.",
        // File.
        CannotConvertToSddlDueToCustomAce: "The permission holds an access control entry that SDDL cannot express.",
        FileInvalidPermission: "The specified file permission is invalid.",
        FileInvalidPermissionKey: "The specified file permission key is unknown.",
        HandleLimitExceeded: "The number of open handles exceeds the limit.",
        InvalidContinuationToken: "The specified continuation token is invalid.",
        InvalidFileOrDirectoryPathName: "The file or directory path name contains invalid characters or requires more path segments than allowed.",
        ShareSnapshotOperationNotSupported: "The operation is not supported on a share snapshot.",
        // Data Lake.
        ContentLengthMustBeZero: "The Content-Length request header must be zero.",
        InvalidFlushPosition: "The uploaded data is not contiguous, or the position is not the length of the file after flushing.",
        InvalidPropertyName: "A property name cannot be empty.",
        InvalidSourceUri: "The source URI is invalid.",
        PathIsTooDeep: "The path has more segments than allowed.",
        UnsupportedRestVersion: "The specified REST version is unsupported.",
    }
    UNAUTHORIZED {
        NoAuthenticationInformation: "Server failed to authenticate the request. Please refer to the information in the www-authenticate header.",
    }
    FORBIDDEN {
        AccountIsDisabled: "The specified account is disabled.",
        AuthenticationFailed: "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly including the signature.",
        AuthorizationFailure: "This request is not authorized to perform this operation.",
        AuthorizationPermissionMismatch: "This request is not authorized to perform this operation using this permission.",
        AuthorizationProtocolMismatch: "This request is not authorized to perform this operation using this protocol.",
        AuthorizationResourceTypeMismatch: "This request is not authorized to perform this operation using this resource type.",
        AuthorizationServiceMismatch: "This request is not authorized to perform this operation using this service.",
        AuthorizationSourceIPMismatch: "This request is not authorized to perform this operation using this source IP.",
        CorsPreflightFailure: "CORS not enabled or no matching rule found for this request.",
        InsufficientAccountPermissions: "The account being accessed does not have sufficient permissions to execute this operation.",
        QueryParameterSasMandatory: "A query parameter that's mandatory for this shared access signature is not specified.",
        QueryParameterSddInvalid: "The directory depth of the shared access signature does not match the directory.",
        RequestForbiddenByContainerEncryptionPolicy: "The request is forbidden by the container encryption policy.",
        ShareDisabled: "The specified share is disabled by the administrator.",
        ShareSizeLimitReached: "The share has reached its quota.",
        OperationNotAllowedOnRootBlob: "The specified operation is not allowed on root blob.",
        UnauthorizedBlobOverwrite: "This request is not authorized to perform blob overwrites.",
    }
    NOT_FOUND {
        ResourceNotFound: "The specified resource does not exist.",
        WebContentNotFound: "The requested content does not exist.",
        BlobNotFound: "The specified blob does not exist.",
        CannotVerifyCopySource: "Could not verify the copy source.",
        ContainerNotFound: "The specified container does not exist.",
        MessageNotFound: "The specified message does not exist.",
        QueueNotFound: "The specified queue does not exist.",
        EntityNotFound: "The specified entity does not exist.",
        TableNotFound: "The table specified does not exist.",
        ParentNotFound: "The specified parent path does not exist.",
        ShareNotFound: "The specified share does not exist.",
        ShareSnapshotNotFound: "The specified share snapshot does not exist.",
        FilesystemNotFound: "The specified filesystem does not exist.",
        PathNotFound: "The specified path does not exist.",
        RenameDestinationParentPathNotFound: "The parent directory of the destination path does not exist.",
        SourcePathNotFound: "The source path for a rename operation does not exist.",
    }
    METHOD_NOT_ALLOWED {
        MethodNotAllowed: "The requested method is not allowed on the specified resource.",
        UnsupportedHttpVerb: "The resource doesn't support specified Http Verb.",
    }
    CONFLICT {
        // Common.
        AccountAlreadyExists: "The specified account already exists.",
        AccountBeingCreated: "The specified account is in the process of being created.",
        ResourceAlreadyExists: "The specified resource already exists.",
        ResourceTypeMismatch: "The specified resource type does not match the type of the existing resource.",
        FeatureVersionMismatch: "The operation needs a newer version of the protocol for a feature that this resource uses.",
        // Leases.
        LeaseAlreadyBroken: "The lease has already been broken and cannot be broken again.",
        LeaseAlreadyPresent: "There is already a lease present.",
        LeaseIdMismatchWithLeaseOperation: "The lease ID specified did not match the lease ID for the blob.",
        LeaseIsAlreadyBroken: "The lease has already been broken and cannot be broken again.",
        LeaseIsBreakingAndCannotBeAcquired: "The lease ID matched, but the lease is currently in breaking state and cannot be acquired until it is broken.",
        LeaseIsBreakingAndCannotBeChanged: "The lease ID matched, but the lease is currently in breaking state and cannot be changed.",
        LeaseIsBrokenAndCannotBeRenewed: "The lease ID matched, but the lease has been broken explicitly and cannot be renewed.",
        LeaseNameMismatch: "The lease name specified did not match the existing lease name.",
        LeaseNotPresentWithLeaseOperation: "There is currently no lease on the blob.",
        // Blob.
        BlobAlreadyExists: "The specified blob already exists.",
        BlobArchived: "This operation is not permitted on an archived blob.",
        BlobBeingRehydrated: "This operation is not permitted because the blob is being rehydrated.",
        BlobCustomerSpecifiedEncryptionMismatch: "The given customer specified encryption does not match the encryption used to encrypt the blob.",
        BlobDoesNotUseCustomerSpecifiedEncryption: "The blob is not encrypted with customer specified encryption, but one was provided in the request.",
        BlobImmutableDueToLegalHold: "This operation is not permitted as the blob is immutable due to a legal hold.",
        BlobImmutableDueToPolicy: "This operation is not permitted as the blob is immutable due to a policy.",
        BlobIsSealed: "The specified append blob is sealed and cannot be appended to.",
        BlobNotArchived: "Blob is not currently in the archive tier.",
        BlobOperationNotSupported: "This operation is not supported on this blob.",
        BlobOverwritten: "The blob has been recreated since the previous snapshot was taken.",
        BlobSnapshotNotSoftDeleted: "The specified snapshot or version is not soft-deleted.",
        BlobTierInadequateForContentLength: "The blob is larger than the content length limit of the specified tier.",
        BlobUsesCustomerSpecifiedEncryption: "The blob is encrypted with customer specified encryption, but it was not provided in the request.",
        BlockCountExceedsLimit: "The number of blocks exceeds the maximum permissible limit.",
        CannotChangeToLowerTier: "A higher blob tier has already been explicitly set.",
        ContainerAlreadyExists: "The specified container already exists.",
        ContainerBeingDeleted: "The specified container is being deleted. Try operation later.",
        ContainerDisabled: "The specified container is disabled by the administrator.",
        ContentLengthLargerThanTierLimit: "The blob's content length cannot exceed its tier limit.",
        CopyIdMismatch: "The specified copy ID did not match the copy ID for the pending copy operation.",
        ImmutabilityPolicyDeleteOnLockedPolicy: "The immutability policy is locked and cannot be deleted.",
        IncrementalCopyBlobMismatch: "The specified source blob is different from the copy source of the existing incremental copy blob.",
        IncrementalCopyOfEarlierVersionSnapshotNotAllowed: "The specified snapshot is earlier than the last snapshot copied into the incremental copy blob.",
        IncrementalCopySourceMustBeSnapshot: "The source for incremental copy request must be a snapshot.",
        InvalidBlobType: "The blob type is invalid for this operation.",
        InvalidSourceBlobType: "The copy source blob type is invalid for this operation.",
        InvalidSourceBlobUrl: "The source URL for incremental copy request must be a valid URL of a page blob of this service.",
        NoPendingCopyOperation: "There is currently no pending copy operation.",
        OperationNotAllowedOnIncrementalCopyBlob: "The specified operation is not allowed on an incremental copy blob.",
        PendingCopyOperation: "There is currently a pending copy operation.",
        PreviousSnapshotNotFound: "The previous snapshot is not found.",
        PreviousSnapshotOperationNotSupported: "Differential Get Page Ranges is not supported on the previous snapshot.",
        PublicAccessNotPermitted: "Public access is not permitted on this storage account.",
        SequenceNumberIncrementTooLarge: "The sequence number increment cannot be performed because it would result in overflow of the sequence number.",
        SnapshotCountExceeded: "The snapshot count against this blob has been exceeded.",
        SnapshotOperationRateExceeded: "The rate of snapshot operations against this blob has been exceeded.",
        SnapshotsPresent: "This operation is not permitted while the blob has snapshots.",
        SystemInUse: "This blob is in use by the system.",
        // Queue.
        QueueAlreadyExists: "The specified queue already exists.",
        QueueBeingDeleted: "The specified queue is being deleted.",
        QueueDisabled: "The specified queue is disabled by the administrator.",
        QueueNotEmpty: "The specified queue is not empty.",
        // Table.
        EntityAlreadyExists: "The specified entity already exists.",
        TableAlreadyExists: "The table specified already exists.",
        TableBeingDeleted: "The specified table is being deleted. Try operation later.",
        // File.
        CannotDeleteFileOrDirectory: "The file or directory could not be deleted because it is in use by an SMB client.",
        ContainerQuotaDowngradeNotAllowed: "The share quota cannot be lowered yet.",
        DeletePending: "The specified resource is marked for deletion by an SMB client.",
        DeleteShareWhenSnapshotLeased: "The share cannot be deleted while one of its snapshots is leased.",
        DirectoryNotEmpty: "The specified directory is not empty.",
        FileGenerationMismatch: "The file has been recreated since the previous snapshot was taken.",
        FileLockConflict: "A portion of the specified file is locked by an SMB client.",
        FileOpenBySmbClient: "The specified file is open by an SMB client.",
        FileShareAccessTierTransitionNotAllowed: "The share cannot move to the specified access tier.",
        ReadOnlyAttribute: "The specified resource is read-only and cannot be modified at this time.",
        SMBDeletePending: "The specified resource is marked for deletion by an SMB client.",
        ShareAlreadyExists: "The specified share already exists.",
        ShareBeingDeleted: "The specified share is being deleted. Try operation later.",
        ShareHasSnapshots: "The share has snapshots and the operation requires no snapshots.",
        ShareSnapshotCountExceeded: "The total number of snapshots for the share is over the limit.",
        ShareSnapshotInProgress: "Another share snapshot is in progress.",
        SharingViolation: "The specified resource may be in use by an SMB client.",
        // Data Lake.
        DestinationPathIsBeingDeleted: "The specified destination path is marked to be deleted.",
        FilesystemAlreadyExists: "The specified filesystem already exists.",
        FilesystemBeingDeleted: "The specified filesystem is being deleted.",
        InvalidDestinationPath: "The specified path, or an element of the path, exists and its resource type is invalid for this operation.",
        InvalidFlushOperation: "The resource was created or modified by the blob service and cannot be written to by the Data Lake service.",
        InvalidRenameSourcePath: "The source directory cannot be the same as the destination directory, nor can the destination be a subdirectory of the source directory.",
        InvalidSourceOrDestinationResourceType: "The source and destination resource type must be identical.",
        PathAlreadyExists: "The specified path already exists.",
        PathConflict: "The specified path, or an element of the path, exists and its resource type is invalid for this operation.",
        SourcePathIsBeingDeleted: "The specified source path is marked to be deleted.",
    }
    LENGTH_REQUIRED {
        MissingContentLengthHeader: "The Content-Length header was not specified.",
    }
    PRECONDITION_FAILED {
        ConditionNotMet: "The condition specified using HTTP conditional header(s) is not met.",
        SourceConditionNotMet: "The source condition specified using HTTP conditional header(s) is not met.",
        TargetConditionNotMet: "The target condition specified using HTTP conditional header(s) is not met.",
        // Leases.
        InfiniteLeaseDurationRequired: "The lease ID matched, but the specified lease must be an infinite-duration lease.",
        LeaseIdMismatch: "The lease ID specified did not match the lease ID for the resource.",
        LeaseIdMismatchWithBlobOperation: "The lease ID specified did not match the lease ID for the blob.",
        LeaseIdMismatchWithContainerOperation: "The lease ID specified did not match the lease ID for the container.",
        LeaseIdMismatchWithFileOperation: "The lease ID specified did not match the lease ID for the file.",
        LeaseIdMissing: "There is currently a lease on the blob and no lease ID was specified in the request.",
        LeaseLost: "A lease ID was specified, but the lease for the blob has expired.",
        LeaseNotPresent: "There is currently no lease on the resource.",
        LeaseNotPresentWithBlobOperation: "There is currently no lease on the blob.",
        LeaseNotPresentWithContainerOperation: "There is currently no lease on the container.",
        LeaseNotPresentWithFileOperation: "There is currently no lease on the file.",
        // Blob.
        AccessTierChangeTimeConditionNotMet: "The condition specified on the time of the last access tier change is not met.",
        AppendPositionConditionNotMet: "The append position condition specified was not met.",
        MaxBlobSizeConditionNotMet: "The max blob size condition specified was not met.",
        SequenceNumberConditionNotMet: "The sequence number condition specified was not met.",
        // Table.
        UpdateConditionNotSatisfied: "The update condition specified in the request was not satisfied.",
    }
    PAYLOAD_TOO_LARGE {
        RequestBodyTooLarge: "The request body is too large and exceeds the maximum permissible limit.",
    }
    UNSUPPORTED_MEDIA_TYPE {
        AtomFormatNotSupported: "Atom format is not supported.",
        MediaTypeNotSupported: "None of the provided media types are supported.",
        JsonFormatNotSupported: "JSON format is not supported.",
    }
    RANGE_NOT_SATISFIABLE {
        InvalidPageRange: "The page range specified is invalid.",
        InvalidRange: "The range specified is invalid for the current size of the resource.",
    }
    INTERNAL_SERVER_ERROR {
        ClientCacheFlushDelay: "The specified resource state could not be flushed from an SMB client in the specified time.",
        InternalError: "Server encountered an internal error. Please try again after some time.",
        OperationTimedOut: "Operation could not be completed within the specified time.",
    }
    NOT_IMPLEMENTED {
        NotImplemented: "The requested operation is not implemented on the specified resource.",
    }
    SERVICE_UNAVAILABLE {
        ServerBusy: "The server is currently unable to receive requests. Please retry your request.",
    }
}
